//! The ledger of one replica: what was sent there and is not settled, as we count it. Never stale.

use expediter_types::Tokens;

/// Requests and tokens in flight at one replica. Every [`Charge`] it gives out comes back exactly once: a charge
/// cannot be copied, and releasing consumes it.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    requests: u64,
    tokens: Tokens,
    prefill: Tokens,
    uncached: Tokens,
}

/// The work that one attempt still means to its replica.
#[derive(Debug)]
#[must_use = "a charge that is dropped is load that never goes away"]
pub(crate) struct Charge {
    tokens: Tokens,
    /// Prompt tokens that it has to compute before its first output.
    prefill: Tokens,
    /// As `prefill`, kept until its end.
    uncached: Tokens,
}

impl Ledger {
    /// What a claim counts for: one that is absurd must not saturate the sum, whose release would then forget
    /// the others.
    pub(crate) fn bounded(tokens: Tokens) -> Tokens {
        tokens.min(CHARGE_MAX)
    }

    /// Books one request of `tokens`, of which `prefill` are prompt that is not cached.
    pub(crate) fn charge(&mut self, tokens: Tokens, prefill: Tokens) -> Charge {
        let (tokens, prefill) = (Self::bounded(tokens), Self::bounded(prefill));
        self.requests += 1;
        self.tokens += tokens;
        self.prefill += prefill;
        self.uncached += prefill;
        Charge { tokens, prefill, uncached: prefill }
    }

    /// Replaces what is left of a request's work.
    pub(crate) fn recharge(&mut self, charge: &mut Charge, tokens: Tokens) {
        let tokens = Self::bounded(tokens);
        self.tokens = self.tokens.saturating_sub(charge.tokens) + tokens;
        charge.tokens = tokens;
    }

    /// The request's prompt is computed.
    pub(crate) fn end_prefill(&mut self, charge: &mut Charge) {
        self.prefill = self.prefill.saturating_sub(std::mem::take(&mut charge.prefill));
    }

    /// Books a request out.
    pub(crate) fn release(&mut self, Charge { tokens, prefill, uncached }: Charge) {
        self.requests = self.requests.saturating_sub(1);
        self.tokens = self.tokens.saturating_sub(tokens);
        self.prefill = self.prefill.saturating_sub(prefill);
        self.uncached = self.uncached.saturating_sub(uncached);
    }

    /// Requests in flight.
    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// Uncached prompt tokens of requests that have no output yet.
    pub(crate) fn prefill(&self) -> Tokens {
        self.prefill
    }

    /// Prompt tokens of requests in flight that were not cached when they came.
    pub(crate) fn uncached(&self) -> Tokens {
        self.uncached
    }

    /// Work in flight.
    pub(crate) fn tokens(&self) -> Tokens {
        self.tokens
    }
}

/// 2³² tokens: more than any context window, and 2³² of them still fit the sum.
const CHARGE_MAX: Tokens = Tokens(1 << 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_charged_comes_back_whatever_it_claimed() {
        let mut ledger = Ledger::default();
        let absurd: Vec<Charge> = (0..3).map(|_| ledger.charge(Tokens(u64::MAX), Tokens(u64::MAX))).collect();
        let mut modest = ledger.charge(Tokens(100), Tokens(60));
        for charge in absurd {
            ledger.release(charge);
        }
        assert_eq!((ledger.requests(), ledger.tokens(), ledger.prefill()), (1, Tokens(100), Tokens(60)));
        ledger.end_prefill(&mut modest);
        ledger.end_prefill(&mut modest);
        assert_eq!((ledger.prefill(), ledger.uncached()), (Tokens::ZERO, Tokens(60)));
        for tokens in [10, u64::MAX, 7] {
            ledger.recharge(&mut modest, Tokens(tokens));
        }
        assert_eq!(ledger.tokens(), Tokens(7));
        ledger.release(modest);
        assert_eq!(ledger.uncached(), Tokens::ZERO);
        assert_eq!((ledger.requests(), ledger.tokens(), ledger.prefill()), (0, Tokens::ZERO, Tokens::ZERO));
    }
}
