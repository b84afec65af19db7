//! Every decision of Expediter: a state machine without IO.
