"""The device: models, KV cache, sampling and kernels. The only place that imports torch; knows no stages."""
