//! What can be named in a scenario or on the command line.

use std::fmt::Write as _;

use expediter_core::Policy;
use expediter_engine_sim::ProfileSet;
use expediter_fleet_sim::presets::PRESETS;

/// The text of `--list`.
pub(crate) fn text() -> String {
    let mut text = String::from(
        "Workloads (--workload), each with the fleet it is meant for, its parameters and their defaults\n",
    );
    for preset in PRESETS {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {:<22} {}", preset.name, preset.about);
        for parameter in preset.parameters() {
            let _ = writeln!(text, "      {} = {}: {}", parameter.name, parameter.default, parameter.about);
        }
    }
    text.push_str("\nPolicies (--policy)\n");
    for policy in Policy::ALL {
        let _ = writeln!(text, "  {policy}");
    }
    text.push_str("\nProfiles (pools.NAME.profile)\n");
    for calibration in ProfileSet::shipped().iter() {
        let _ = writeln!(text, "  {}", calibration.name);
    }
    text
}
