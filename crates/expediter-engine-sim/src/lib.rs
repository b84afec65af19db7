//! What one vLLM-like replica would do.
