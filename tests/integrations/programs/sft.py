"""A tiny fine-tuning by TRL's SFTTrainer that reports to TensorBoard."""

import sys
import time

import datasets
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

import eroica.integrations.news
from eroica.integrations.transformers import EroicaCallback

eroica.integrations.news.EVERY_S = 0.05
WORDS = ["<unk>", "<pad>", "</s>", "every", "word", "known"]


class Slow(TrainerCallback):
    def on_step_end(self, *_args, **_more):
        time.sleep(0.05)


plain = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=plain, unk_token="<unk>", pad_token="<pad>", bos_token="</s>", eos_token="</s>"
)
small = LlamaConfig(
    vocab_size=len(WORDS), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
    max_position_embeddings=16, pad_token_id=1, bos_token_id=2, eos_token_id=2,
)  # fmt: skip
arguments = SFTConfig(
    output_dir="out", max_steps=20, per_device_train_batch_size=2, max_length=8, logging_steps=5, save_strategy="no",
    use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=["tensorboard"], disable_tqdm=True,
)  # fmt: skip
trainer = SFTTrainer(
    model=LlamaForCausalLM(small), args=arguments, processing_class=tokenizer, callbacks=[Slow()],
    train_dataset=datasets.Dataset.from_dict({"text": ["every word known"] * 40}),
)  # fmt: skip
trainer.add_callback(EroicaCallback(trainer))
trainer.train()
sys.stdout.write(f"steps {trainer.state.global_step}\n")
