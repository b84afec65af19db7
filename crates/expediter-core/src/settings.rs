//! What a pool's dispatcher can be told to do differently.

use std::time::Duration;

use crate::policy::{Policy, PolicyParameters};

/// The settings of one pool. They may change while requests are in flight: see
/// [`Dispatcher::set_settings`](crate::Dispatcher::set_settings).
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How a replica is chosen among those that qualify.
    pub policy: Policy,
    /// What the policies that have parameters are told.
    pub policy_parameters: PolicyParameters,
    /// Attempts one request may make, the first included.
    pub attempts_max: u32,
    /// Retries allowed for each request that arrives.
    pub retry_ratio: f64,
    /// Retries allowed each second however few requests arrive, so that a quiet pool can retry too.
    pub retry_per_second_min: u32,
    /// When a replica is set aside for failing, and when it is tried again.
    pub breaker: BreakerSettings,
    /// The longest that a request waits for a replica to become ready.
    pub wait_max: Duration,
    /// Requests that may wait at once.
    pub waiting_max: usize,
    /// How long a replica that becomes ready beside established ones takes to reach its full share.
    pub ramp: Duration,
    /// Age from which an engine's report is not used as load.
    pub stale_after: Duration,
    /// When a replica that says nothing is given up.
    pub silence: SilenceSettings,
    /// The longest that one attempt may go without output, whatever else the replica does.
    pub first_output_limit: Duration,
    /// How long a replica may take to drain where the drain names no limit.
    pub drain_limit: Duration,
    /// Health probes in a row that a ready replica may leave unanswered before it is set aside, if nothing else
    /// shows that it lives.
    pub unhealthy_after: u32,
    /// Whether a replica must answer a warm-up request before it gets a client's. Without it a replica that was
    /// set aside is tried with one client's request.
    pub warm_up: bool,
    /// How long a warm-up request may take before it counts as failed. The shell should give up earlier.
    pub warm_up_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: Policy::LeastTokens,
            policy_parameters: PolicyParameters::default(),
            attempts_max: 3,
            retry_ratio: 0.2,
            retry_per_second_min: 10,
            breaker: BreakerSettings::default(),
            wait_max: Duration::from_secs(10),
            waiting_max: 1_024,
            ramp: Duration::from_secs(10),
            stale_after: Duration::from_secs(1),
            silence: SilenceSettings::default(),
            first_output_limit: Duration::from_secs(600),
            drain_limit: Duration::from_secs(600),
            unhealthy_after: 3,
            warm_up: true,
            warm_up_timeout: Duration::from_secs(11),
        }
    }
}

/// When failures set a replica aside, and when it is tried again.
#[derive(Clone, Debug, PartialEq)]
pub struct BreakerSettings {
    /// Failures in a row that set a replica aside.
    pub failures_max: u32,
    /// How far back the share of failures looks.
    pub window: Duration,
    /// The share of failures within the window that sets a replica aside, 0 to 1.
    pub window_failures_ratio: f64,
    /// Answers and failures within the window below which the share says nothing.
    pub window_requests_min: u32,
    /// From being set aside to the first trial.
    pub trial: Duration,
    /// The longest gap between trials; it doubles up to here with each one that fails.
    pub trial_max: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            failures_max: 5,
            window: Duration::from_secs(10),
            window_failures_ratio: 0.5,
            window_requests_min: 20,
            trial: Duration::from_secs(5),
            trial_max: Duration::from_secs(30),
        }
    }
}

/// When a replica that says nothing is given up. A hung engine keeps its port open and answers `/health`, so
/// silence is judged by what requests see: see the module `silence`.
#[derive(Clone, Debug, PartialEq)]
pub struct SilenceSettings {
    /// A replica may be silent for this many times its recent worst time to first token,
    pub ttft_factor: u32,
    /// but for at least this long, since an answer may be slow once without its replica being dead,
    pub limit_min: Duration,
    /// and for no longer than this, which also holds while nothing is known of it.
    pub limit_max: Duration,
    /// Added for each prompt token, since long prompts are computed in silence.
    pub per_prompt_token: Duration,
    /// Added for each token an answer may have, up to 4,096, where the answer comes whole and no fresh report
    /// of the engine can show that it works.
    pub per_answer_token: Duration,
    /// The shortest gap between trials of a replica that was set aside for silence.
    pub trial_gap: Duration,
    /// A replica that showed life this recently is not set aside for probes it leaves unanswered.
    pub alive_within: Duration,
}

impl Default for SilenceSettings {
    fn default() -> Self {
        Self {
            ttft_factor: 8,
            limit_min: Duration::from_millis(1_500),
            limit_max: Duration::from_secs(10),
            per_prompt_token: Duration::from_millis(1),
            per_answer_token: Duration::from_millis(50),
            trial_gap: Duration::from_secs(10),
            alive_within: Duration::from_secs(3),
        }
    }
}
