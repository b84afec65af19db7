//! What one vLLM-like replica would do: continuous batching over paged KV blocks with a prefix cache, and how
//! long each forward pass takes. Driven step by step; no clock, no IO, and every draw comes from the caller.
//!
//! ```
//! use expediter_engine_sim::{Engine, FinishReason, Request, Settings};
//! use expediter_types::{Prng, Prompt, RequestId, Time, Tokens};
//!
//! let mut rng = Prng::new(7);
//! let mut engine = Engine::new(Settings::default());
//! let prompt = Prompt::from_token_ids(&[1, 2, 3], engine.settings().block_size, 0);
//! let request = Request { id: RequestId(1), prompt, output: Tokens(2), ends_with: FinishReason::Length };
//! engine.arrive(request, Time::ZERO)?;
//! let mut now = Time::ZERO;
//! let mut produced = 0;
//! while let Some(step) = engine.begin_step(now, &mut rng) {
//!     now += step.duration;
//!     produced += engine.end_step(now).len();
//! }
//! assert_eq!(produced, 2);
//! # Ok::<(), expediter_engine_sim::ArriveError>(())
//! ```
//!
//! The rules are those of vLLM's V1 scheduler and block pool (`vllm/v1/core/`), read at 0.32.0.

mod blocks;
mod engine;
mod profile;
mod scheduler;
mod step_time;

pub use engine::{ArriveError, Engine, Settings, Stats, Step};
pub use profile::{Profile, UnknownProfile};
pub use scheduler::{FinishReason, Life, Progress, Request};
pub use step_time::{Batch, Coefficients};
