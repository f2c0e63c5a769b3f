"""Methods in a user's training script: ``ddp``, ``fsdp`` and ``horovod`` for gradients, ``local_steps`` for weights."""
