//! What a scenario says where its file is silent.

use std::collections::BTreeMap;

use expediter_gateway::settings::{Millis, Ratio, RawBreaker, RawPolicyParameters, RawRetry, RawWait, Whole};

use super::raw::{RawDispatcher, RawScenario, RawSlo, RawWorkload};

impl Default for RawScenario {
    fn default() -> Self {
        Self {
            description: String::new(),
            pools: BTreeMap::new(),
            gateways: Whole::new(1),
            gateway_overhead_us: Whole::new(8_000),
            network_delay_us: Whole::new(0),
            report_interval_ms: Millis::new(200),
            probe_interval_ms: Millis::new(1_000),
            slo: RawSlo::default(),
            faults: Vec::new(),
            workload: RawWorkload::default(),
            policies: vec!["least_tokens".to_owned()],
            rates: Vec::new(),
            seed: Whole::new(1),
            seeds: Whole::new(1),
            duration_ms: None,
            warm_up_ms: None,
            drain_ms: None,
        }
    }
}

impl Default for RawDispatcher {
    fn default() -> Self {
        Self {
            policy_parameters: RawPolicyParameters::default(),
            retry: RawRetry::default(),
            breaker: RawBreaker::default(),
            wait: RawWait::default(),
            ramp_ms: Millis::new(10_000),
            stale_ms: Millis::new(1_000),
            warm_up: true,
        }
    }
}

impl Default for RawSlo {
    fn default() -> Self {
        Self {
            ttft_ms: Millis::new(400),
            tpot_ms: Millis::new(50),
            prompt_tokens_max: Whole::new(4_000),
            ttft_share: Ratio::new(0.99),
            tpot_share: Ratio::new(0.95),
        }
    }
}
