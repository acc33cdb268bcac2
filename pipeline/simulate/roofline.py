"""A roofline of a step (Williams et al., CACM 2009), from a data sheet and a model's shape.

Linear layers and attention run one after the other, and each is bound by the slower of arithmetic and memory:

    step = max(linear flops / F, weight bytes / B) + max(attention flops / F, KV bytes / B) + launches + links

with F = peak * compute_efficiency and B = bandwidth * memory_efficiency. Weights are read once a step, KV
once a row. Activations' traffic, and how a small chunk fills a kernel's tiles, are left out.

Tensor parallelism over N GPUs divides flops, weights and KV evenly and adds two ring all-reduces a layer, of
2 (N-1)/N * tokens * hidden bytes each at the link's bandwidth plus its latency (Shoeybi et al., 2019).
"""

from pipeline.checkpoint.card import Architecture
from pipeline.errors import ConfigError
from pipeline.messages import DeviceReady
from pipeline.simulate.devices import Device
from pipeline.simulate.models import DTYPE_BYTES, kv_bytes, layer_parameters, weight_bytes
from pipeline.simulate.work import StepWork

KV_FRACTION = 0.8
"""Of the memory that the weights leave, as gpu.memory.sizing takes on a GPU."""


class Roofline:
    """The cost of a step of `model` on `num_gpus` of `device`; implements Cost."""

    def __init__(self, device: Device, model: Architecture, dtype: str, num_gpus: int) -> None:
        flops = device.flops[dtype] * device.compute_efficiency * num_gpus
        bandwidth = device.bandwidth * device.memory_efficiency * num_gpus
        layers = model.num_layers
        self._token_s = 2 * layers * layer_parameters(model) / flops
        self._logits_s = 2 * model.vocab_size * model.hidden_size / flops
        self._weights_s = weight_bytes(model, dtype) / bandwidth
        self._attended_s = 4 * layers * model.num_heads * model.head_dim / flops
        self._kv_s = kv_bytes(model, dtype) / bandwidth
        self._fixed_s = layers * device.launch_s + device.step_s
        self._link_token_s = 0.0
        self._decode: dict[int, tuple[float, float]] = {}
        if num_gpus > 1:
            sent = 2 * (num_gpus - 1) / num_gpus * model.hidden_size * DTYPE_BYTES[dtype]
            self._link_token_s = 2 * layers * sent / device.link_bandwidth
            self._fixed_s += 2 * layers * device.link_latency_s

    def step_ns(self, work: StepWork) -> int:
        num_tokens, num_rows, num_sampled, num_kv, num_attended = work
        if num_tokens == num_rows == num_sampled and num_kv == num_attended:
            base_ns, kv_ns = self.decode_ns(num_rows)
            return int(base_ns + kv_ns * num_kv)
        attention_s = max(num_attended * self._attended_s, num_kv * self._kv_s)
        return int((self._linear_s(num_tokens, num_sampled) + attention_s) * 1e9)

    def decode_ns(self, num_rows: int) -> tuple[float, float]:
        known = self._decode.get(num_rows)
        if known is None:
            kv_s = max(self._attended_s, self._kv_s)
            known = self._decode[num_rows] = self._linear_s(num_rows, num_rows) * 1e9, kv_s * 1e9
        return known

    def _linear_s(self, num_tokens: int, num_sampled: int) -> float:
        """All but attention."""
        linear_s = max(num_tokens * self._token_s + num_sampled * self._logits_s, self._weights_s)
        return linear_s + self._fixed_s + num_tokens * self._link_token_s


def capacity(
    device: Device,
    model: Architecture,
    dtype: str,
    num_gpus: int,
    *,
    block_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
) -> DeviceReady:
    """What the devices hold together. Raises ConfigError if the weights do not fit."""
    weights = weight_bytes(model, dtype)
    left = num_gpus * device.memory_bytes - weights
    num_blocks = int(left * KV_FRACTION) // (block_size * kv_bytes(model, dtype))
    if num_blocks < 1:
        raise ConfigError(
            f"{weights / 1e9:.1f} GB of weights do not fit {num_gpus} x {device.name} with "
            f"{device.memory_bytes / 1e9:.0f} GB: give more GPUs (--gpus, tensor parallel)"
        )
    return DeviceReady(num_blocks, block_size, max_num_seqs, max_num_batched_tokens)
