"""The model over the reference kernels against Hugging Face transformers, on random weights in fp32."""

import msgspec
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.checkpoint.card import Architecture, RopeScaling
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import build_runner
from pipeline.gpu.sampling import SamplingOp, SamplingRows
from tests.gpu.driver import TINY, Driver, Sequence, random_tensors

FP32 = RunnerOptions(dtype="float32", device="cpu", num_blocks=160, block_size=8, max_num_seqs=8)


class KeepLogits(SamplingOp):
    """Greedy, and remembers the logits it saw."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def __call__(self, logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
        self.seen.append(logits.clone())
        return super().__call__(logits, rows)


def hugging_face(architecture: Architecture) -> LlamaForCausalLM:
    scaling = architecture.rope_scaling
    rope = {"rope_type": "default", "rope_theta": architecture.rope_theta}
    if scaling is not None:
        rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            rope |= {
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_position,
            }
    config = LlamaConfig(
        vocab_size=architecture.vocab_size,
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=architecture.num_layers,
        num_attention_heads=architecture.num_heads,
        num_key_value_heads=architecture.num_kv_heads,
        head_dim=architecture.head_dim,
        max_position_embeddings=architecture.max_position,
        rms_norm_eps=architecture.rms_norm_eps,
        rope_parameters=rope,
        tie_word_embeddings=architecture.tie_embeddings,
        attention_bias=architecture.attention_bias,
        mlp_bias=architecture.mlp_bias,
    )
    model = LlamaForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(dict(random_tensors(architecture)), strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if architecture.tie_embeddings else [])
    return model


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, TINY.vocab_size, (length,), generator=generator).tolist()


VARIANTS = {
    "untied": {},
    "tied": {"tie_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "no grouping": {"num_kv_heads": 6},
    "linear": {"rope_scaling": RopeScaling("linear", 4.0)},
    "llama3": {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 64)},
}


class Recorder:
    """A driver that keeps (sequence, number of tokens before, logits) of every sampled row."""

    def __init__(self, architecture: Architecture) -> None:
        self.keep = KeepLogits()
        self.driver = Driver(
            build_runner(architecture, random_tensors(architecture), FP32, lambda: self.keep)
        )
        self.rows: list[tuple[Sequence, int, torch.Tensor]] = []

    def step(self, rows: list[tuple[Sequence, int]]) -> None:
        for sequence, logits in zip(self.driver.step(rows), self.keep.seen.pop(), strict=True):
            self.rows.append((sequence, len(sequence.token_ids) - 1, logits))


@pytest.mark.parametrize("name", VARIANTS)
def test_packed_mixed_steps_match_transformers(name: str) -> None:
    architecture = msgspec.structs.replace(TINY, **VARIANTS[name])
    recorder = Recorder(architecture)
    a, b, c, d, e = (recorder.driver.add(prompt(length, length)) for length in (1, 5, 8, 130, 300))
    recorder.step([(a, 1), (b, 5), (c, 8)])
    recorder.step([(a, 1), (e, 100), (b, 1), (d, 127)])
    recorder.step([(d, 2), (c, 1), (e, 30)])
    recorder.step([(e, 169), (d, 1), (a, 1)])
    recorder.step([(e, 1), (d, 1), (c, 1), (b, 1), (a, 1)])
    assert len(recorder.rows) == 3 + 2 + 1 + 2 + 5
    model = hugging_face(architecture)
    for sequence in (a, b, c, d, e):
        tokens = prompt(sequence_length := len(sequence.token_ids) - len(sequence.output), sequence_length)
        with torch.inference_mode():
            expected = model(torch.tensor([tokens + sequence.output])).logits[0]
        for owner, num_before, logits in recorder.rows:
            if owner is sequence:
                torch.testing.assert_close(logits, expected[num_before - 1], atol=2e-5, rtol=1e-5)
