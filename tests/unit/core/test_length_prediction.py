from pipeline.core import length_prediction
from pipeline.core.length_prediction import MIN_ANSWERS, RING, JudgedLengths, QuantileLengths
from tests.scheduler_world import sequence


def answered(predictor: QuantileLengths, lengths: list[int], **rest: object) -> None:
    for k, length in enumerate(lengths):
        each = sequence(k, max_tokens=1000, **rest)  # type: ignore[arg-type]
        each.token_ids += [7] * length
        predictor.observe(each)


def test_a_cold_start_expects_the_most() -> None:
    assert QuantileLengths().predict(sequence(0, max_tokens=77)) == 77


def test_a_quantile_of_the_tenants_answers_to_prompts_of_that_size() -> None:
    predictor = QuantileLengths(0.5)
    answered(predictor, [10] * 5 + [30] * 6 + [90] * 5, prompt=20, tenant="a")
    answered(predictor, [500] * 20, prompt=2000, tenant="a")
    assert predictor.predict(sequence(0, prompt=25, max_tokens=1000, tenant="a")) == 30
    assert predictor.predict(sequence(0, prompt=1500, max_tokens=1000, tenant="a")) == 500


def test_never_more_than_max_tokens_and_never_none() -> None:
    predictor = QuantileLengths()
    answered(predictor, [50] * 20, prompt=20)
    assert predictor.predict(sequence(0, prompt=20, max_tokens=5)) == 5
    answered(predictor, [0] * RING, prompt=20)
    assert predictor.predict(sequence(0, prompt=20, max_tokens=5)) == 1


def test_a_new_tenant_is_expected_to_be_like_the_others() -> None:
    predictor = QuantileLengths()
    answered(predictor, [50] * MIN_ANSWERS, prompt=20, tenant="a")
    assert predictor.predict(sequence(0, prompt=20, max_tokens=1000, tenant="b")) == 50


def test_old_answers_are_forgotten() -> None:
    predictor = QuantileLengths()
    answered(predictor, [50] * RING + [5] * RING, prompt=20)
    assert predictor.predict(sequence(0, prompt=20, max_tokens=1000)) == 5


def test_memory_is_bounded_however_many_tenants_there_are() -> None:
    predictor = QuantileLengths()
    for k in range(2 * length_prediction.MAX_RINGS):
        answered(predictor, [5], tenant=f"t{k}")
    assert len(predictor._rings) == length_prediction.MAX_RINGS


def test_its_error_is_counted() -> None:
    lengths = JudgedLengths(QuantileLengths())
    each = sequence(0, max_tokens=20)
    lengths.predict(each)
    each.token_ids += [7] * 5
    lengths.observe(each)
    assert (each.predicted_tokens, lengths.num_judged, lengths.error_tokens) == (20, 1, 15)
