import pytest

from pipeline.core.chat import ROLES, ChatTemplate, check_messages
from pipeline.errors import ModelError, RequestError
from pipeline.messages import ChatMessage

STRICT = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "[{{ m.role }}]{{ m.content | trim }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def template(source: str, *, max_chars: int = 10_000, **variables: str) -> ChatTemplate:
    return ChatTemplate(source, variables, lambda form: f"<{form}>", max_chars)


def user(*contents: str) -> list[ChatMessage]:
    return [ChatMessage("user", content) for content in contents]


def refusal(source: str, messages: list[ChatMessage], **options: int) -> RequestError:
    with pytest.raises(RequestError) as caught:
        template(source, **options).render(messages)
    assert (caught.value.status, caught.value.param) == (400, "messages")
    return caught.value


def test_render() -> None:
    messages = [*user(" Hi "), ChatMessage("assistant", "Yes?"), *user("No")]
    assert (
        template(STRICT, bos_token="<s>").render(messages) == "<s>[user]Hi[assistant]Yes?[user]No[assistant]"
    )


def test_a_refusal_by_the_template_carries_its_words() -> None:  # trap 40
    assert "Conversation roles must alternate user/assistant" in refusal(STRICT, user("a", "b")).message


@pytest.mark.parametrize("source", ["{{ messages[0].tools[0].name }}", "{{ 1 // 0 }}", "{{ messages + 1 }}"])
def test_whatever_a_template_raises_is_about_the_messages(source: str) -> None:  # trap 40
    assert "chat template" in refusal(source, user("a")).message


@pytest.mark.parametrize(
    "source",
    ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ cycler.__init__.__globals__.os }}"],
)
def test_a_template_is_kept_in_the_sandbox(source: str) -> None:
    assert refusal(source, user("a")).code == "chat_template"


def test_output_is_bounded() -> None:
    source = "{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}"
    assert "100 characters" in refusal(source, user("abc"), max_chars=100).message


def test_rendering_ends_where_the_bound_is() -> None:
    calls: list[str] = []
    source = "{% for i in range(1000) %}{{ strftime_now('x') }}{% endfor %}"
    endless = ChatTemplate(source, {}, lambda form: calls.append(form) or form, 10)  # type: ignore[func-returns-value]
    with pytest.raises(RequestError, match="10 characters"):
        endless.render(user("a"))
    assert len(calls) < 20


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ strftime_now('%Y') }}", "<%Y>"),
        ("{{ messages[0].content | tojson }}", '"é<b>"'),
        ("{{ messages | tojson(indent=1) }}", '[\n {\n  "role": "user",\n  "content": "é<b>"\n }\n]'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}", "user"),
        ("{% if true %}\n    x\n  {% endif %}\ny", "    x\ny"),
        ("[{{ bos_token }}{{ tools }}]", "[None]"),
    ],
)
def test_the_dialect_is_that_of_transformers(source: str, expected: str) -> None:
    assert template(source).render(user("é<b>")) == expected


def test_a_template_that_does_not_compile_is_a_fault_of_the_model() -> None:
    with pytest.raises(ModelError, match="line 2"):
        template("x\n{% if %}")


def test_no_messages() -> None:
    with pytest.raises(RequestError, match="empty"):
        check_messages([])


def test_an_unknown_role_is_refused() -> None:
    """Templates make markers of roles: "<|" + role + "|>"."""
    check_messages([ChatMessage(role, "") for role in ROLES])
    with pytest.raises(RequestError, match=r"messages\[1\]\.role is 'end'"):
        check_messages([*user("a"), ChatMessage("end", "b")])
