//! Many tenants, each with a pace, a model and a system prompt of its own.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use expediter_types::{Arrival, ModelId, Prng, Time, Tokens};

use super::arrivals::{Arrivals, Gaps, Renewal, to_time};
use super::capacity::{content_rng, shortest_with};
use super::content::{Prefix, Stream};
use super::error::{WorkloadError, check};
use super::lengths::Lengths;
use super::rate::{Rate, RateWalk};

/// The traffic of many tenants in one stream. Each is a Gamma renewal process of its own; all rates are scaled by
/// one factor to the total.
///
/// Prompts that are long enough begin with the tenant's system prompt, so its popularity is the tenant's.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantMix {
    /// Requests per second of all tenants together, over time.
    pub rate: Rate,
    /// The tenants.
    pub tenants: Vec<Tenant>,
    /// How long prompts and answers are.
    pub lengths: Lengths,
    /// Tokens of a tenant's system prompt. A prompt begins with it only where more than another block follows.
    pub prefix: Tokens,
}

/// Who pays, and how they send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tenant {
    /// Its rate as a share of the sum over all tenants; any unit will do.
    pub weight: f64,
    /// Coefficient of variation of the gaps between its requests.
    pub cv: f64,
    /// The model it asks for. Tenants with different models share no blocks.
    pub model: ModelId,
}

impl TenantMix {
    /// The requests.
    pub fn start(&self, seed: u64) -> Result<impl Iterator<Item = Arrival> + use<>, WorkloadError> {
        self.rate.check()?;
        self.lengths.check()?;
        if self.tenants.is_empty() {
            return Err(WorkloadError::Empty { field: "tenants", remedy: "at least one tenant" });
        }
        let prefixes: Vec<Prefix> = (0..)
            .zip(&self.tenants)
            .map(|(number, tenant)| Prefix::new(number, self.prefix, u64::from(tenant.model.0)))
            .collect();
        let mut clock = MixClock::new(&self.rate, &self.tenants, seed)?;
        let (mut rng, shortest) = (content_rng(seed), shortest_with(self.prefix));
        let (lengths, tenants) = (self.lengths.clone(), self.tenants.clone());
        let mut number = 0;
        Ok(std::iter::from_fn(move || {
            let (at, tenant) = clock.next()?;
            number += 1;
            let (prompt, output) = lengths.draw(&mut rng);
            let stream = if prompt > shortest {
                Stream::after(&prefixes[tenant], number)
            } else {
                Stream::unique(number)
            };
            Some(Arrival {
                at,
                model: tenants[tenant].model,
                tenant: u32::try_from(tenant).unwrap_or(u32::MAX),
                prompt: stream.prompt(prompt, output),
                output,
                output_cap: lengths.output_cap(),
            })
        }))
    }
}

/// All tenants' processes side by side, over the requests expected so far; the rate then says when that is.
struct MixClock {
    walk: RateWalk,
    reached: f64,
    processes: Vec<Process>,
    /// The next request of each tenant, soonest first.
    due: BinaryHeap<Reverse<(Due, usize)>>,
}

struct Process {
    renewal: Renewal,
    rng: Prng,
    /// Requests of all tenants for each of this one's.
    gap_mean: f64,
}

impl MixClock {
    fn new(rate: &Rate, tenants: &[Tenant], seed: u64) -> Result<Self, WorkloadError> {
        let total: f64 = tenants.iter().map(|tenant| tenant.weight).sum();
        let mut seeds = Prng::new(seed);
        let mut processes = Vec::with_capacity(tenants.len());
        for Tenant { weight, cv, .. } in tenants {
            check(*weight > 0.0 && weight.is_finite(), "tenants.weight", *weight, "a number above 0")?;
            let renewal = Renewal::new(Gaps::Gamma { cv: *cv })?;
            processes.push(Process { renewal, rng: Prng::new(seeds.bits()), gap_mean: total / weight });
        }
        let due =
            processes.iter_mut().enumerate().map(|(tenant, process)| Reverse((Due(process.gap()), tenant)));
        let due = due.collect();
        Ok(Self { walk: RateWalk::new(rate), reached: 0.0, processes, due })
    }

    fn next(&mut self) -> Option<(Time, usize)> {
        let mut soonest = self.due.peek_mut()?;
        let Reverse((Due(due), tenant)) = *soonest;
        *soonest = Reverse((Due(due + self.processes[tenant].gap()), tenant));
        drop(soonest);
        let seconds = self.walk.advance(due - std::mem::replace(&mut self.reached, due))?;
        Some((to_time(seconds), tenant))
    }
}

impl Process {
    fn gap(&mut self) -> f64 {
        self.renewal.gap(&mut self.rng) * self.gap_mean
    }
}

/// A number of expected requests, in order.
#[derive(Clone, Copy, Debug)]
struct Due(f64);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Tenants that each send on their own account, as fairness is judged with: some more than their share, some
/// less, some now and then.
#[derive(Clone, Debug, PartialEq)]
pub struct RivalTenants {
    /// The tenants.
    pub tenants: Vec<Rival>,
    /// The model asked for.
    pub model: ModelId,
}

/// One of several tenants that compete.
#[derive(Clone, Debug, PartialEq)]
pub struct Rival {
    /// When its requests come; bursts make it an on-off client.
    pub arrivals: Arrivals,
    /// How long they are.
    pub lengths: Lengths,
    /// Tokens that its prompts begin with, where they are longer; 0 for nothing shared.
    pub prefix: Tokens,
}

impl RivalTenants {
    /// The requests. Each tenant's do not depend on the others.
    pub fn start(&self, seed: u64) -> Result<impl Iterator<Item = Arrival> + use<>, WorkloadError> {
        let mut seeds = Prng::new(seed);
        let mut streams = Vec::with_capacity(self.tenants.len());
        for (tenant, rival) in (0..).zip(&self.tenants) {
            streams.push(rival.start(tenant, self.model, seeds.bits())?);
        }
        if streams.is_empty() {
            return Err(WorkloadError::Empty { field: "tenants", remedy: "at least one tenant" });
        }
        let mut due: BinaryHeap<Reverse<(Time, usize)>> = BinaryHeap::new();
        let mut next: Vec<Option<Arrival>> = streams.iter_mut().map(Iterator::next).collect();
        due.extend(
            next.iter()
                .enumerate()
                .filter_map(|(index, arrival)| Some(Reverse((arrival.as_ref()?.at, index)))),
        );
        Ok(std::iter::from_fn(move || {
            let Reverse((_, index)) = due.pop()?;
            let arrival = std::mem::replace(&mut next[index], streams[index].next());
            due.extend(next[index].as_ref().map(|arrival| Reverse((arrival.at, index))));
            arrival
        }))
    }
}

impl Rival {
    fn start(
        &self,
        tenant: u32,
        model: ModelId,
        seed: u64,
    ) -> Result<impl Iterator<Item = Arrival> + use<>, WorkloadError> {
        self.lengths.check()?;
        let prefix = Prefix::new(u64::from(tenant), self.prefix, 0);
        let (lengths, mut rng, shortest) =
            (self.lengths.clone(), content_rng(seed), shortest_with(self.prefix));
        let first = u64::from(tenant) << 32;
        Ok((first..).zip(self.arrivals.start(seed)?).map(move |(number, at)| {
            let (tokens, output) = lengths.draw(&mut rng);
            let shares = tokens > shortest;
            let stream = if shares { Stream::after(&prefix, number) } else { Stream::unique(number) };
            let (prompt, output_cap) = (stream.prompt(tokens, output), lengths.output_cap());
            Arrival { at, model, tenant, prompt, output, output_cap }
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::workload::testing::ideal_hit_ratio;

    const FIXED: Lengths = Lengths::Fixed { prompt: Tokens(1_840), output: Tokens(300) };

    fn tenant(weight: f64, cv: f64, model: u32) -> Tenant {
        Tenant { weight, cv, model: ModelId(model) }
    }

    fn mix() -> TenantMix {
        let tenants = vec![tenant(6.0, 1.0, 0), tenant(3.0, 4.0, 0), tenant(1.0, 2.0, 1)];
        TenantMix { rate: Rate::Constant(100.0), tenants, lengths: FIXED, prefix: Tokens(1_536) }
    }

    #[test]
    fn each_tenant_gets_its_share_at_its_pace() {
        let arrivals: Vec<Arrival> = mix().start(1).unwrap().take(200_000).collect();
        let seconds = |at: Time| at.since(Time::ZERO).as_secs_f64();
        assert!((seconds(arrivals[199_999].at) / 2_000.0 - 1.0).abs() < 0.02, "{:?}", arrivals[199_999].at);
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at));
        for (number, tenant) in (0..).zip(&mix().tenants) {
            let own: Vec<f64> = arrivals
                .iter()
                .filter(|arrival| arrival.tenant == number)
                .map(|arrival| seconds(arrival.at))
                .collect();
            let gaps: Vec<f64> = own.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            let (share, cv) = (own.len() as f64 / 200_000.0, variance.sqrt() / mean);
            assert!((share * 10.0 / tenant.weight - 1.0).abs() < 0.05, "tenant {number}: share {share}");
            assert!((cv / tenant.cv - 1.0).abs() < 0.07, "tenant {number}: CV {cv}");
        }
        assert!(ideal_hit_ratio(&arrivals[..2_000]) > 0.82, "system prompts come again");
    }

    #[test]
    fn a_seed_is_one_history() {
        let take = |seed| -> Vec<Arrival> { mix().start(seed).unwrap().take(500).collect() };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }

    #[test]
    fn a_rival_is_the_same_whoever_competes() {
        let rival = |rate, prompt| Rival {
            arrivals: Arrivals::poisson(rate),
            lengths: Lengths::Fixed { prompt: Tokens(prompt), output: Tokens(100) },
            prefix: Tokens(0),
        };
        let of = |tenants: Vec<Rival>| -> Vec<Arrival> {
            let rivals = RivalTenants { tenants, model: ModelId(0) };
            let ten = Time::ZERO + Duration::from_secs(10);
            rivals.start(1).unwrap().take_while(|arrival| arrival.at < ten).collect()
        };
        let alone = of(vec![rival(5.0, 300)]);
        let both = of(vec![rival(5.0, 300), rival(20.0, 900)]);
        let first: Vec<Arrival> = both.iter().filter(|arrival| arrival.tenant == 0).cloned().collect();
        assert_eq!(alone, first);
        assert!(both.is_sorted_by_key(|arrival| arrival.at));
        assert!(both.len() - first.len() > 150);
    }

    #[test]
    fn mistakes_name_their_field() {
        let cases = [
            (TenantMix { tenants: vec![], ..mix() }, "`tenants` is empty"),
            (TenantMix { tenants: vec![tenant(0.0, 1.0, 0)], ..mix() }, "`tenants.weight` is 0"),
            (TenantMix { tenants: vec![tenant(1.0, 0.0, 0)], ..mix() }, "`cv` is 0"),
            (TenantMix { rate: Rate::Constant(f64::INFINITY), ..mix() }, "`rate` is inf"),
        ];
        for (mix, expected) in cases {
            let error = mix.start(0).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
