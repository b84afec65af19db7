//! What goes wrong, and whether it can.

use expediter_fleet_sim::{Fault, FaultAt, Scenario};
use expediter_gateway::settings::{KeyPath, Millis, one_of};
use expediter_types::Time;

use super::{Check, u32_of};
use crate::simulate::raw::{RawFault, RawFaultKind, RawScenario};

impl Check {
    pub(super) fn faults(&mut self, raw: &RawScenario, fleet: &Scenario) -> Vec<FaultAt> {
        let path = KeyPath::ROOT.key("faults");
        let faults = raw.faults.iter().enumerate();
        faults.filter_map(|(index, fault)| self.fault(fault, raw, fleet, &path.index(index))).collect()
    }

    fn fault(
        &mut self,
        raw: &RawFault,
        scenario: &RawScenario,
        fleet: &Scenario,
        path: &KeyPath,
    ) -> Option<FaultAt> {
        let fault = self.kind(raw, path);
        let Some(pool) = fleet.pools.iter().position(|pool| pool.name == raw.pool) else {
            let message = format!("there is no pool `{}`", raw.pool);
            let names = one_of(fleet.pools.iter().map(|pool| pool.name.as_str()));
            self.mistake(path.key("pool"), message, format!("choose {names}"));
            return None;
        };
        let duration = scenario.duration_ms.map_or(fleet.duration, Millis::duration);
        if raw.at_ms.duration() >= duration {
            let message = format!("at {} no requests arrive any more", raw.at_ms);
            self.mistake(path.key("at_ms"), message, "name a time within `duration_ms`");
        }
        let replica = self.replica(raw, scenario, u64::from(fleet.pools[pool].replicas), path)?;
        Some(FaultAt { at: Time::ZERO + raw.at_ms.duration(), pool, replica, fault: fault? })
    }

    /// The number of the replica; 0 for one that joins, which takes the next.
    fn replica(
        &mut self,
        raw: &RawFault,
        scenario: &RawScenario,
        at_start: u64,
        path: &KeyPath,
    ) -> Option<u32> {
        if raw.kind == RawFaultKind::Join {
            if raw.replica.is_some() {
                let message = "a replica that joins takes the next number";
                self.mistake(path.key("replica"), message, "take `replica` out");
            }
            return Some(0);
        }
        let Some(replica) = raw.replica else {
            let message = "which replica is not said";
            self.mistake(path.clone(), message, "add `replica`, its number from 0");
            return None;
        };
        let joins = |fault: &&RawFault| fault.kind == RawFaultKind::Join && fault.pool == raw.pool;
        let joined = scenario.faults.iter().filter(joins).count() as u64;
        let count = at_start + joined;
        if replica.get() >= count {
            let message = format!("pool `{}` has no replica {}", raw.pool, replica.get());
            self.mistake(path.key("replica"), message, format!("choose 0 to {}", count - 1));
            return None;
        }
        Some(u32_of(replica.get()))
    }

    fn kind(&mut self, raw: &RawFault, path: &KeyPath) -> Option<Fault> {
        for (key, given, kind) in [
            ("factor", raw.factor.is_some(), RawFaultKind::Slow),
            ("status", raw.status.is_some(), RawFaultKind::Status),
            ("tokens", raw.tokens.is_some(), RawFaultKind::Cut),
        ] {
            if given != (raw.kind == kind) {
                let (path, message, remedy) = if given {
                    (path.key(key), format!("this kind of fault has no `{key}`"), format!("take `{key}` out"))
                } else {
                    (path.clone(), format!("`{key}` is missing"), format!("add `{key}`"))
                };
                self.mistake(path, message, remedy);
                return None;
            }
        }
        Some(match raw.kind {
            RawFaultKind::Heal => Fault::Heal,
            RawFaultKind::Refuse => Fault::Refuse,
            RawFaultKind::Crash => Fault::Crash,
            RawFaultKind::Hang => Fault::Hang,
            RawFaultKind::Freeze => Fault::Freeze,
            RawFaultKind::Slow => Fault::Slow(raw.factor?.get()),
            RawFaultKind::Status => Fault::Status(u16::try_from(raw.status?.get()).ok()?),
            RawFaultKind::StaleReports => Fault::StaleReports,
            RawFaultKind::Cut => Fault::Cut(raw.tokens?.get()),
            RawFaultKind::Join => Fault::Join,
            RawFaultKind::Drain => Fault::Drain,
            RawFaultKind::Lose => Fault::Lose,
        })
    }
}
