# Horovod 0.28.1 asks CMake for C++14, torch >= 2.1 needs C++17. Named by the environment
# variable CMAKE_TOOLCHAIN_FILE, this raises the standard without touching Horovod's source.
set(CMAKE_USER_MAKE_RULES_OVERRIDE_CXX "${CMAKE_CURRENT_LIST_DIR}/horovod-cxx17.cmake")
