//! The retry budget: a fault may cost some extra attempts, but must not multiply the traffic.

use std::time::Duration;

use expediter_types::Time;

use crate::settings::Settings;

/// What a pool may still spend on retries. Each request that arrives deposits `retry_ratio` of a retry, and a
/// deposit fades over ten seconds, so that at most ten seconds' worth of traffic is saved up. Beside it a
/// reserve of ten seconds' worth of `retry_per_second_min` refills with time. A retry takes one whole.
/// Source: finagle's `RetryBudget` (util/src/main/scala, deposits with a time to live of 10 s) and linkerd2's
/// retry budgets, with a linear fade instead of buckets.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    deposits: f64,
    reserve: f64,
    updated: Time,
}

impl RetryBudget {
    /// A budget with a full reserve.
    pub(crate) fn new(settings: &Settings) -> Self {
        Self { deposits: 0.0, reserve: reserve_max(settings), updated: Time::ZERO }
    }

    /// A request arrived.
    pub(crate) fn deposit(&mut self, settings: &Settings, now: Time) {
        self.advance(settings, now);
        self.deposits += settings.retry_ratio;
    }

    /// Whether a retry could be taken now.
    pub(crate) fn allows(&mut self, settings: &Settings, now: Time) -> bool {
        self.advance(settings, now);
        self.deposits + self.reserve >= 1.0 - ROUNDING
    }

    /// Takes one retry; `false` where there is none, and nothing is taken.
    pub(crate) fn withdraw(&mut self, settings: &Settings, now: Time) -> bool {
        if !self.allows(settings, now) {
            return false;
        }
        let from_deposits = self.deposits.min(1.0);
        self.deposits -= from_deposits;
        self.reserve = (self.reserve - (1.0 - from_deposits)).max(0.0);
        true
    }

    fn advance(&mut self, settings: &Settings, now: Time) {
        let elapsed = now.since(self.updated).as_secs_f64();
        self.updated = self.updated.max(now);
        self.deposits *= (1.0 - elapsed / WINDOW.as_secs_f64()).max(0.0);
        let refill = elapsed * f64::from(settings.retry_per_second_min);
        self.reserve = (self.reserve + refill).min(reserve_max(settings));
    }
}

fn reserve_max(settings: &Settings) -> f64 {
    f64::from(settings.retry_per_second_min) * WINDOW.as_secs_f64()
}

/// Five deposits of a fifth are a whole, whatever their sum in binary.
const ROUNDING: f64 = 1e-9;

/// finagle's default time to live of a deposit.
const WINDOW: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn withdraw_all(budget: &mut RetryBudget, settings: &Settings, now: Time) -> u32 {
        (0..1_000).take_while(|_| budget.withdraw(settings, now)).map(|_| 1).sum()
    }

    #[test]
    fn deposits_fade_and_the_reserve_refills() {
        let settings = Settings { retry_ratio: 0.5, retry_per_second_min: 1, ..Settings::default() };
        let mut budget = RetryBudget::new(&settings);
        assert_eq!(withdraw_all(&mut budget, &settings, Time::ZERO), 10, "the reserve is full at first");
        // (arrivals at once, seconds until the withdrawals, retries allowed)
        for (start, (arrivals, wait, expected)) in
            (1..).zip([(0, 0, 0), (100, 0, 50), (100, 5, 30), (100, 10, 10), (0, 3, 3), (0, 1_000, 10)])
        {
            let start = Time::from_millis(start * 10_000_000);
            budget.advance(&settings, start);
            withdraw_all(&mut budget, &settings, start);
            (0..arrivals).for_each(|_| budget.deposit(&settings, start));
            let allowed = withdraw_all(&mut budget, &settings, start + Duration::from_secs(wait));
            assert_eq!(allowed, expected, "{arrivals} arrivals, {wait} s");
        }
    }
}
