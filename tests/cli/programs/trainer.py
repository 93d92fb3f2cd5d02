"""A `transformers.Trainer` on a tiny random model, with evaluation after each epoch."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


def main():
    torch.set_num_threads(1)
    set_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    tokens = torch.randint(0, 32, (16, 8))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=2,
            per_device_train_batch_size=4,
            per_device_eval_batch_size=4,
            eval_strategy="epoch",
            save_strategy="no",
            logging_strategy="epoch",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            GPT2LMHeadModel(config), arguments, train_dataset=rows[:12], eval_dataset=rows[12:]
        )
        trainer.log = lambda logs, *_: print(
            {name: float(value).hex() for name, value in logs.items() if "loss" in name}
        )
        trainer.train()
    print(sum(p.double().sum() for p in trainer.model.parameters()).item().hex())


if __name__ == "__main__":
    main()
