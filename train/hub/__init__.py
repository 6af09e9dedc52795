"""Import and export of models in the Hugging Face layout: config.json, safetensors, tokenizer.json."""
