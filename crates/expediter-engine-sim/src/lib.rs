//! What one vLLM-like replica would do: continuous batching over paged KV blocks with a prefix cache, and how
//! long each forward pass takes. Driven step by step; no clock, no IO, and every draw comes from the caller.
//!
//! ```
//! use expediter_engine_sim::{Engine, FinishReason, Request, Settings};
//! use expediter_types::{Prng, Prompt, RequestId, Time, Tokens};
//!
//! let mut rng = Prng::new(7);
//! let mut engine = Engine::new(Settings::default());
//! let request = Request {
//!     id: RequestId(1),
//!     prompt: Prompt::from_token_ids(&[1, 2, 3], engine.settings().block_size, 0),
//!     output: Tokens(2),
//!     ends_with: FinishReason::Length,
//!     adapter: None,
//!     priority: 0,
//! };
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
//! The rules are those of vLLM's V1 scheduler and block pool (`vllm/v1/core/`), read at 0.32.0. Steps do not overlap:
//! what a request frees at the end of a step is there for the next, where vLLM with async scheduling has planned
//! the next already.

mod adapters;
mod blocks;
mod engine;
mod events;
mod profile;
mod queue;
mod request;
mod scheduler;
mod sequence;
mod settings;
mod step_time;

pub use engine::{ArriveError, Engine, QueueLimit, Stats, Step};
pub use events::KvEvent;
pub use profile::{Calibration, Profile, ProfileError, ProfileSet, UnknownProfile};
pub use request::{FinishReason, Life, Progress, Request};
pub use settings::{LoraSettings, Scheduling, Settings};
pub use step_time::{Batch, Coefficients};
