"""Methods in anybody's training script: ``ddp`` for DistributedDataParallel, ``horovod`` for Horovod."""
