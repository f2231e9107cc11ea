"""What a model is asked."""

from __future__ import annotations

from cloudeval.problems import Variant

_TEMPLATE = {
    "full": "You are an expert in cloud configuration. Answer with the complete YAML only, without explanation.",
    "terse": "Reply with the YAML only.",
    "chinese": "你是云配置专家。只用完整的 YAML 回答，不要解释。",
}


def prompt(variant: Variant, style: str, shots: list[tuple[str, str]] | None = None) -> str:
    """Return the prompt for a problem in one of the three styles, with solved examples before it if given."""
    parts = [_TEMPLATE[style]]
    parts += [f"Question:\n{question}\n\nAnswer:\n```yaml\n{answer.strip()}\n```" for question, answer in shots or []]
    parts.append(variant.questions[style])
    if variant.context:
        parts.append(f"```yaml\n{variant.context.strip()}\n```")
    return "\n\n".join(parts)
