//! Bytes to values and back: OpenAI JSON, SSE, HTTP/1.1 answers, engine metrics.
