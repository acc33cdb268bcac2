import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.checkpoint.card import Architecture, RopeScaling
from pipeline.checkpoint.folder import describe_folder
from pipeline.errors import ModelError
from pipeline.messages import SamplingParams
from tests.tiny_models import CONFIG, TEMPLATE, VOCAB, byte_level_tokenizer, random_tensors, write_folder


def architecture(folder: Path, **config: Any) -> Architecture:
    return describe_folder(write_folder(folder, config=config), "here").architecture


def test_a_whole_card(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "Tiny-Instruct")
    card = describe_folder(folder, "tiny")
    assert (card.name, card.reference, card.path, card.format) == ("Tiny-Instruct", "tiny", folder, "folder")
    assert (card.bos_token, card.eos_token, card.chat_template) == ("<|im_start|>", "<|im_end|>", TEMPLATE)
    assert card.eos_ids == (0, 2)  # generation_config has both
    assert card.architecture == Architecture(
        family="llama",
        num_layers=2,
        hidden_size=64,
        intermediate_size=128,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=VOCAB,
        max_position=256,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_embeddings=True,
    )
    assert card.new_tokenizer().encode("hello 12").ids == byte_level_tokenizer().encode("hello 12").ids


def test_what_transformers_saves_is_read_back(tmp_path: Path) -> None:
    """transformers 5 writes rope_parameters, head_dim and no rope_theta of its own."""
    from transformers import LlamaConfig

    folder = write_folder(tmp_path / "tiny")
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    fields = {key: value for key, value in CONFIG.items() if key not in ("model_type", "rope_theta")}
    LlamaConfig(**fields, head_dim=32, rope_parameters=rope, attention_bias=True).save_pretrained(folder)
    found = describe_folder(folder, "tiny").architecture
    assert (found.head_dim, found.rope_theta, found.attention_bias) == (32, 5e5, True)
    assert found.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 64)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, RopeScaling("linear", 2.0)),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 32.0}}, RopeScaling("llama3", 32.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, None),
    ],
)
def test_both_spellings_of_rope_scaling(
    tmp_path: Path, config: dict[str, Any], expected: RopeScaling | None
) -> None:
    assert architecture(tmp_path, **config).rope_scaling == expected


def test_defaults_of_older_configs(tmp_path: Path) -> None:
    found = architecture(tmp_path, num_key_value_heads=None, rope_theta=None, tie_word_embeddings=None)
    assert (found.num_kv_heads, found.rope_theta, found.tie_embeddings) == (4, 10000.0, False)


def test_mistral_is_of_the_llama_family_without_a_window(tmp_path: Path) -> None:
    assert architecture(tmp_path / "a", model_type="mistral", sliding_window=None).family == "llama"
    assert architecture(tmp_path / "b", model_type="mistral", sliding_window=256).family == "llama"
    off = architecture(tmp_path / "c", model_type="mistral", sliding_window=9, use_sliding_window=False)
    assert (off.family, off.layer_windows) == ("llama", ())


def test_windows_are_those_of_the_layers_that_have_one(tmp_path: Path) -> None:
    mistral = architecture(tmp_path / "a", model_type="mistral", sliding_window=100)
    assert mistral.layer_windows == (100, 100)
    window = {"use_sliding_window": True, "sliding_window": 100}
    qwen = architecture(tmp_path / "b", model_type="qwen2", max_window_layers=1, **window)
    assert qwen.layer_windows == (0, 100)
    kinds = ["sliding_attention", "full_attention"]
    named = architecture(tmp_path / "c", model_type="qwen3", layer_types=kinds, **window)
    assert (named.layer_windows, named.qk_norm, named.head_dim) == ((100, 0), True, 128)
    assert architecture(tmp_path / "d", model_type="qwen2", sliding_window=100).layer_windows == ()


PUBLISHED_GEMMA: dict[str, Any] = {
    "model_type": "gemma3",
    "eos_token_id": [1, 2],
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 7,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152},
}


def published_gemma(folder: Path, **text: Any) -> Architecture:
    """As Gemma 3 4B publishes it: the text part names what differs from transformers' defaults."""
    config = PUBLISHED_GEMMA | {"text_config": PUBLISHED_GEMMA["text_config"] | text}
    (write_folder(folder) / "config.json").write_text(json.dumps(config))
    return describe_folder(folder, "gemma").architecture


def test_gemma_3_as_published(tmp_path: Path) -> None:
    assert published_gemma(tmp_path) == Architecture(
        family="gemma3",
        num_layers=7,
        hidden_size=2560,
        intermediate_size=10240,
        num_heads=8,
        num_kv_heads=4,
        head_dim=256,
        vocab_size=262208,
        max_position=131072,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        rope_scaling=RopeScaling("linear", 8.0),
        tie_embeddings=True,
        qk_norm=True,
        post_norms=True,
        activation="gelu",
        embedding_scale=2560**0.5,
        attention_scale=1 / 16,
        layer_windows=(1024, 1024, 1024, 1024, 1024, 0, 1024),
        local_rope_theta=1e4,
    )
    assert describe_folder(tmp_path, "gemma").eos_ids[:2] == (0, 1)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"hidden_activation": "relu"}, "hidden_activation = 'relu'"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"layer_types": ["full_attention"]}, "1 layer_types for 7 layers"),
        ({"layer_types": ["chunked_attention"] * 7}, "layer_types chunked_attention"),
    ],
)
def test_what_gemma_could_ask_for_and_cannot_be_served(
    tmp_path: Path, text: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        published_gemma(tmp_path, **text)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"sliding_window": 128}, "sliding_window = 128"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"model_type": "qwen2", "num_experts": 8}, "a mixture of experts"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"hidden_size": 66}, "hidden_size"),
        ({"hidden_size": "64"}, r"\$.hidden_size"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
    ],
)
def test_what_cannot_be_served_is_named(tmp_path: Path, config: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=rf"config.json.*{named}"):
        architecture(tmp_path, **config)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path)
    (folder / name).unlink()
    with pytest.raises(ModelError, match=name):
        describe_folder(folder, "tiny")


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
def test_a_cut_json_file_is_named(tmp_path: Path, name: str) -> None:
    file = write_folder(tmp_path) / name
    file.write_text(file.read_text()[:-5])
    with pytest.raises(ModelError, match=rf"{name} is not .* Fetch it again"):
        describe_folder(tmp_path, "tiny")


def test_the_optional_files_are_optional(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    (folder / "generation_config.json").unlink()
    card = describe_folder(folder, "tiny")
    assert (card.chat_template, card.bos_token, card.eos_token, card.eos_ids) == (None, None, None, (2,))


def test_special_tokens_and_templates_in_their_other_forms(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    words = {"chat_template": templates, "eos_token": {"content": "<|endoftext|>", "lstrip": False}}
    folder = write_folder(tmp_path, tokenizer_config=words, config={"eos_token_id": None})
    (folder / "generation_config.json").unlink()
    card = describe_folder(folder, "tiny")
    assert (card.chat_template, card.eos_token, card.eos_ids) == ("D", "<|endoftext|>", (0,))


def test_the_template_file_wins(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "chat_template.jinja").write_text("from the file")
    assert describe_folder(folder, "tiny").chat_template == "from the file"


def test_the_turn_end_of_the_template_ends_an_answer(tmp_path: Path) -> None:
    """Several published chat models name only <|endoftext|> as their end."""
    folder = write_folder(
        tmp_path, config={"eos_token_id": 0}, tokenizer_config={"eos_token": "<|endoftext|>"}
    )
    (folder / "generation_config.json").unlink()
    assert describe_folder(folder, "tiny").eos_ids == (0, 2)


def test_truncation_and_padding_of_the_tokenizer_are_off(tmp_path: Path) -> None:
    """Some repositories publish them on; a prompt would be cut or padded without a word."""
    folder = write_folder(tmp_path)
    tokenizer = byte_level_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    loaded = describe_folder(folder, "tiny").new_tokenizer()
    assert len(loaded.encode("abcdefgh").ids) == 8
    assert len(loaded.encode("a").ids) == 1


def test_a_shard_that_is_missing_cut_or_of_another_model_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, random_tensors(), num_shards=3)
    describe_folder(folder, "tiny")
    shard = folder / "model-00002-of-00003.safetensors"
    whole = shard.read_bytes()
    for size in (0, 7, 100, len(whole) - 1):
        shard.write_bytes(whole[:size])
        with pytest.raises(
            ModelError, match=r"model-00002-of-00003.safetensors is cut short.*Fetch it again"
        ):
            describe_folder(folder, "tiny")
    shard.write_bytes((folder / "model-00001-of-00003.safetensors").read_bytes())
    with pytest.raises(ModelError, match=r"model-00002-of-00003.safetensors lacks model"):
        describe_folder(folder, "tiny")
    shard.unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00003.safetensors cannot be read"):
        describe_folder(folder, "tiny")


def test_safetensors_that_are_none(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00" + b"{ not a header }" + bytes(100))
    with pytest.raises(ModelError, match=r"model.safetensors is damaged"):
        describe_folder(folder, "tiny")
    weights.write_bytes(b"<html>the page you asked for is not here</html>")
    with pytest.raises(ModelError, match=r"model.safetensors is cut short or no safetensors file"):
        describe_folder(folder, "tiny")


def test_an_index_may_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, num_shards=2)
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="not a file beside it"):
        describe_folder(folder, "tiny")


def test_how_its_makers_would_have_it_sampled(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    assert describe_folder(folder, "x").generation == SamplingParams()
    file = folder / "generation_config.json"
    file.write_text('{"do_sample": true, "temperature": 0.6, "top_k": -1, "top_p": 0.95, "min_p": null}')
    assert describe_folder(folder, "x").generation == SamplingParams(temperature=0.6, top_p=0.95)
    file.write_text('{"top_p": 1.5}')
    with pytest.raises(ModelError, match=r"generation_config.json.*top_p"):
        describe_folder(folder, "x")
