//! A ring of hashes that gives each key an order of replicas.

use expediter_types::{BlockHash, ReplicaId};

/// Points of replicas in order of their hash. Whoever knows the same replicas by the same identities has the same
/// ring.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    points: Vec<(BlockHash, ReplicaId)>,
    /// What the points were made of.
    members: Vec<(ReplicaId, u64)>,
    points_each: u32,
}

impl Ring {
    /// Makes the points those of `members`, each with its identity, if they are not already.
    pub(crate) fn renew(
        &mut self,
        members: impl Iterator<Item = (ReplicaId, u64)> + Clone,
        points_each: u32,
    ) {
        if self.points_each == points_each && members.clone().eq(self.members.iter().copied()) {
            return;
        }
        self.members = members.collect();
        self.points_each = points_each;
        self.points.clear();
        for (replica, identity) in &self.members {
            let root = BlockHash::root(*identity);
            let points = (0..points_each).map(|number| (root.then_number(number.into()), *replica));
            self.points.extend(points);
        }
        self.points.sort_unstable();
    }

    /// The replicas that follow `key` clockwise, each as often as it has points.
    pub(crate) fn walk(&self, key: BlockHash) -> impl Iterator<Item = ReplicaId> {
        let start = self.points.partition_point(|(point, _)| *point < key);
        let (before, after) = self.points.split_at(start);
        after.iter().chain(before).map(|(_, replica)| *replica)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(members: impl Iterator<Item = u32> + Clone) -> Ring {
        let mut ring = Ring::default();
        ring.renew(members.map(|id| (ReplicaId(id), u64::from(id))), 256);
        ring
    }

    fn owner(ring: &Ring, key: u64) -> ReplicaId {
        ring.walk(BlockHash::root(key)).next().expect("a ring with members")
    }

    #[test]
    fn keys_spread_and_only_those_of_a_lost_replica_move() {
        let (eight, seven) = (ring(0..8), ring(0..7));
        let mut shares = [0; 8];
        for key in 0..16_000 {
            let owner = owner(&eight, key);
            shares[owner.0 as usize] += 1;
            if owner != ReplicaId(7) {
                assert_eq!(self::owner(&seven, key), owner, "key {key}");
            }
        }
        // 256 points leave each arc within about ± 20 % of its share.
        assert!(shares.iter().all(|share| (1_600..2_400).contains(share)), "{shares:?}");
    }

    #[test]
    fn a_walk_goes_round_once() {
        let ring = ring(0..3);
        let walk: Vec<ReplicaId> = ring.walk(BlockHash(u64::MAX)).collect();
        assert_eq!(walk.len(), 3 * 256);
        assert!((0..3).all(|id| walk.iter().filter(|at| **at == ReplicaId(id)).count() == 256));
    }
}
