"""Models to and from the layout of Hugging Face: config.json, safetensors, tokenizer.json."""
