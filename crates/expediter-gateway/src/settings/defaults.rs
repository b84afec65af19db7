//! What the configuration says where the file is silent.

use std::collections::BTreeMap;

use super::bounded::{Millis, Ratio, Whole};
use super::raw::{
    RawAdmin, RawBreaker, RawExpose, RawLimits, RawLog, RawProbe, RawRetry, RawSettings, RawUsage, RawWait,
};

impl Default for RawSettings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".to_owned(),
            tls: None,
            shards: Whole::new(0),
            admin: RawAdmin::default(),
            replicas: Vec::new(),
            pools: BTreeMap::new(),
            aliases: BTreeMap::new(),
            limits: RawLimits::default(),
            probe: RawProbe::default(),
            retry: RawRetry::default(),
            breaker: RawBreaker::default(),
            wait: RawWait::default(),
            ramp_ms: Millis::new(10_000),
            drain_limit_ms: Millis::new(600_000),
            usage: RawUsage::default(),
            log: RawLog::default(),
            expose: RawExpose::default(),
        }
    }
}

impl Default for RawAdmin {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8081".to_owned(),
            token: None,
            token_file: None,
            replica_networks: PRIVATE_NETWORKS.map(str::to_owned).to_vec(),
        }
    }
}

/// Loopback (RFC 1122, RFC 4291) and the private networks of RFC 1918 and RFC 4193. Link-local addresses are not
/// among them: cloud machines serve their credentials there.
const PRIVATE_NETWORKS: [&str; 6] =
    ["127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7"];

impl Default for RawLimits {
    fn default() -> Self {
        Self {
            body_bytes_max: Whole::new(32 << 20),
            head_ms: Millis::new(10_000),
            body_bytes_per_second_min: Whole::new(1000),
            connect_ms: Millis::new(1000),
            first_output_ms: Millis::new(600_000),
            gap_ms: Millis::new(120_000),
            answer_ms: None,
            client_stall_ms: Millis::new(120_000),
            idle_ms: Millis::new(75_000),
            event_bytes_max: Whole::new(16 << 20),
            answer_bytes_max: Whole::new(64 << 20),
            stop_ms: Millis::new(30_000),
            connections_max: Whole::new(16_384),
        }
    }
}

impl Default for RawProbe {
    fn default() -> Self {
        Self {
            interval_ms: Millis::new(1000),
            timeout_ms: Millis::new(1000),
            report_ms: Millis::new(200),
            stale_ms: Millis::new(1000),
            warm_up: true,
            warm_up_timeout_ms: Millis::new(10_000),
        }
    }
}

impl Default for RawRetry {
    fn default() -> Self {
        Self { attempts_max: Whole::new(3), ratio: Ratio::new(0.2), per_second_min: Whole::new(10) }
    }
}

impl Default for RawBreaker {
    fn default() -> Self {
        Self {
            failures_max: Whole::new(5),
            window_ms: Millis::new(10_000),
            window_failures_ratio: Ratio::new(0.5),
            window_requests_min: Whole::new(20),
            trial_ms: Millis::new(5000),
            trial_ms_max: Millis::new(5_000),
        }
    }
}

impl Default for RawWait {
    fn default() -> Self {
        Self { limit_ms: Millis::new(10_000), requests_max: Whole::new(1024) }
    }
}
