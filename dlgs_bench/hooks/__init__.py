"""Methods in anybody's training script: ``ddp``, ``fsdp``, ``horovod`` for gradients, ``local_steps`` for weights."""
