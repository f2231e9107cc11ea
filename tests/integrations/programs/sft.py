"""TRL's SFTTrainer steps once for two batches; one process says what it counted.

An epoch has 41 batches: its last step has one of them. With trackers as arguments it takes 20 steps, and Eroica's
callback reports to them.
"""

import json
import os
import sys
import time

import datasets
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

WORDS = ["<unk>", "<pad>", "</s>", "every", "word", "known"]


class Batches(TrainerCallback):
    count = 0

    def on_substep_end(self, *_args, **_more):
        self.count += 1
        time.sleep(0.05)

    on_step_end = on_substep_end


plain = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=plain, unk_token="<unk>", pad_token="<pad>", bos_token="</s>", eos_token="</s>"
)
small = LlamaConfig(
    vocab_size=len(WORDS), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
    max_position_embeddings=16, pad_token_id=1, bos_token_id=2, eos_token_id=2,
)  # fmt: skip
trackers = sys.argv[1:]
arguments = SFTConfig(
    output_dir="out", num_train_epochs=4, max_steps=20 if trackers else -1, per_device_train_batch_size=2,
    gradient_accumulation_steps=2, max_length=8, save_strategy="no", use_cpu=True, bf16=False,
    gradient_checkpointing=False, ddp_backend="gloo" if "RANK" in os.environ else None, logging_steps=5,
    report_to=trackers, disable_tqdm=True,
)  # fmt: skip
batches = Batches()
trainer = SFTTrainer(
    model=LlamaForCausalLM(small), args=arguments, processing_class=tokenizer, callbacks=[batches],
    train_dataset=datasets.Dataset.from_dict({"text": ["every word known"] * (41 * 2 * 2)}),
)  # fmt: skip
if trackers:
    import eroica.integrations.news
    from eroica.integrations.transformers import EroicaCallback

    eroica.integrations.news.EVERY_S = 0.05
    trainer.add_callback(EroicaCallback(trainer))
trainer.train()
if trainer.is_world_process_zero():
    made = {"job": "sft", "steps": trainer.state.global_step, "batches": batches.count}
    sys.stdout.write(json.dumps(made) + "\n")
