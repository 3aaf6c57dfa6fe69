"""SGLang's KV canary: records, plans and checks in its format, bit by bit."""
