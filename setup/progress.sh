#!/usr/bin/env bash
# Run a command of uv. Print its output with the time since the start, and every 15 s without output what it waits for.
set -euo pipefail
declare -A pending=()
print() { printf '%d:%02d  %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$1"; }
"$@" 2>&1 | while true; do
  status=0
  IFS= read -r -t 15 line || status=$?
  if [ "$status" -gt 128 ]; then # timeout
    print "... ${pending[*]:-installing}"
  elif [ "$status" -eq 0 ]; then
    read -r verb package _ <<< "$line"
    case $verb in
      Downloading | Building) pending[$package]="${verb,} $package" ;;
      Downloaded | Built) unset "pending[$package]" ;;
      +) continue ;; # an installed package
    esac
    print "$line"
  else # end of output
    break
  fi
done
