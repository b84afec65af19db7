//! One reading of the gateway's public face: the replica list, and the counters of each pool.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::http;

/// What an operator can know of the gateway at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// By pool, then by id.
    pub(crate) replicas: Vec<Replica>,
    /// By name; pools without a request are missing.
    pub(crate) pools: BTreeMap<String, PoolCounts>,
}

impl Reading {
    /// Asks the admin listener.
    pub(crate) async fn take(admin: SocketAddr, token: &str) -> Result<Self> {
        let list = http::get(admin, "/admin/replicas", Some(token)).await?.text().await?;
        let metrics = http::get(admin, "/metrics", None).await?.text().await?;
        let ReplicaList { mut replicas } = serde_json::from_str(&list).context("the list of replicas")?;
        replicas.sort_by_cached_key(|replica| (order(replica.pool.as_deref()), order(replica.id.as_deref())));
        Ok(Self { replicas, pools: parse_metrics(&metrics) })
    }

    /// Whether there are replicas, and all are ready.
    pub(crate) fn is_ready(&self) -> bool {
        !self.replicas.is_empty() && self.replicas.iter().all(|replica| replica.state == "ready")
    }
}

#[derive(Deserialize)]
struct ReplicaList {
    replicas: Vec<Replica>,
}

/// A replica, as the admin API shows it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Replica {
    pub(crate) id: Option<String>,
    pub(crate) url: String,
    pub(crate) pool: Option<String>,
    pub(crate) state: String,
    pub(crate) cause: Option<String>,
    pub(crate) dispatched: u64,
    pub(crate) failed: u64,
    pub(crate) running: Option<u64>,
    pub(crate) waiting: Option<u64>,
    /// Ratio of KV blocks in use.
    pub(crate) kv_usage: Option<f64>,
    pub(crate) first_token_ms: Option<u64>,
    pub(crate) report_age_ms: Option<u64>,
}

impl Replica {
    /// Whether it has told its running, waiting and KV usage a moment ago.
    pub(crate) fn is_heard(&self) -> bool {
        self.report_age_ms.is_some_and(|age| age <= REPORT_AGE_MS_MAX)
    }
}

/// Reports come five times a second: one this old is about another time.
const REPORT_AGE_MS_MAX: u64 = 3_000;

/// What a pool has counted since the gateway started.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PoolCounts {
    /// All that were received: those that ended, however they did, and those in flight.
    pub(crate) requests: f64,
    /// Those whose client left.
    pub(crate) left: f64,
    /// Those that ended neither with a good answer nor with the client's leaving.
    pub(crate) errors: f64,
    pub(crate) input_tokens: f64,
    pub(crate) cached_tokens: f64,
    pub(crate) output_tokens: f64,
    /// Upper edge in seconds and count up to it, in the order of edges.
    pub(crate) first_token: Vec<(f64, f64)>,
}

/// Short names first, which puts `replica-10` after `replica-9`, and those without a name last.
fn order(name: Option<&str>) -> (usize, String) {
    name.map_or((usize::MAX, String::new()), |name| (name.len(), name.to_owned()))
}

/// Reads the families that the table needs from a Prometheus text; all else is skipped.
fn parse_metrics(text: &str) -> BTreeMap<String, PoolCounts> {
    let mut pools: BTreeMap<String, PoolCounts> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, labels, value)) = sample(line) else { continue };
        let Some(pool) = label(labels, "pool") else { continue };
        let counts = pools.entry(pool.to_owned()).or_default();
        match name {
            "expediter_requests_total" => {
                counts.requests += value;
                match (label(labels, "outcome"), label(labels, "status_class")) {
                    (Some("completed"), Some("2xx")) => {}
                    (Some("cancelled"), _) => counts.left += value,
                    _ => counts.errors += value,
                }
            }
            "expediter_in_flight" => counts.requests += value,
            "expediter_input_tokens_total" => counts.input_tokens += value,
            "expediter_cached_tokens_total" => counts.cached_tokens += value,
            "expediter_output_tokens_total" => counts.output_tokens += value,
            "expediter_first_token_seconds_bucket" => {
                let edge = label(labels, "le").and_then(|edge| edge.parse().ok()).unwrap_or(f64::INFINITY);
                counts.first_token.push((edge, value));
            }
            _ => {}
        }
    }
    pools
}

/// Name, labels and value of a line. A value cannot hold a space, nor can the names of our pools.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = series.strip_suffix('}')?.split_once('{')?;
    Some((name, labels, value.parse().ok()?))
}

fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    labels.split(',').find_map(|label| label.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_by_pool() {
        let text = "\
# TYPE expediter_requests counter
expediter_requests_total{pool=\"m-8b\",outcome=\"completed\",status_class=\"2xx\"} 7
expediter_requests_total{pool=\"m-8b\",outcome=\"completed\",status_class=\"4xx\"} 1
expediter_requests_total{outcome=\"cancelled\",status_class=\"4xx\",pool=\"m-8b\"} 2
expediter_requests_total{pool=\"m-8b\",outcome=\"upstream_failure\",status_class=\"2xx\"} 3
expediter_in_flight{pool=\"m-8b\"} 6
expediter_output_tokens_total{pool=\"m-70b\"} 40
expediter_first_token_seconds_bucket{le=\"0.005\",pool=\"m-8b\"} 1
expediter_first_token_seconds_bucket{le=\"+Inf\",pool=\"m-8b\"} 9
expediter_connections 5
";
        let pools = parse_metrics(text);
        let of_8b = PoolCounts {
            requests: 19.0,
            left: 2.0,
            errors: 4.0,
            first_token: vec![(0.005, 1.0), (f64::INFINITY, 9.0)],
            ..PoolCounts::default()
        };
        assert_eq!(pools["m-8b"], of_8b);
        assert_eq!(pools["m-70b"], PoolCounts { output_tokens: 40.0, ..PoolCounts::default() });
    }
}
