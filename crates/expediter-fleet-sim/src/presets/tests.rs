use std::time::Duration;

use expediter_types::{ModelId, Prompt, Time, Tokens};

use super::*;
use crate::workload::testing::{ideal_hit_ratio, mean};

/// A stand-in for recorded data: lengths that vary, three clients.
struct Few;

impl Traces for Few {
    fn requests(&self, _: Trace) -> Arc<[Arrival]> {
        let request = |number: u64| Arrival {
            at: Time::from_millis(100 * number),
            model: ModelId(0),
            tenant: 0,
            prompt: Prompt::opaque(Tokens(200 + number % 10 * 300)),
            output: Tokens(20 + number % 7 * 30),
            output_cap: Tokens(200),
        };
        (0..1_000).map(request).collect()
    }

    fn clients(&self) -> Vec<Client> {
        [(5.0, 1.0), (3.0, 2.5), (0.5, 8.0)].map(|(rate, cv)| Client { rate, cv }).to_vec()
    }
}

fn take(preset: &Preset, values: &Values, seed: u64, count: usize) -> Vec<Arrival> {
    let mut workload = preset.start(values, &preset.fleet().models, &Few, seed).unwrap();
    std::iter::from_fn(|| workload.next()).take(count).collect()
}

#[test]
fn every_preset_starts_on_its_fleet_and_a_seed_is_one_history() {
    for preset in PRESETS {
        let (values, fleet) = (preset.values(), preset.fleet());
        assert_eq!(fleet.scenario.check(), Ok(()), "{}", preset.name);
        let requests = take(preset, &values, 7, 40);
        assert_eq!(requests.len(), 40, "{}", preset.name);
        assert!(requests == take(preset, &values, 7, 40), "{}: two histories", preset.name);
        // A trace is what it is, unless its requests are spread.
        let drawn = values.get("spread_seconds") != Some(0.0);
        assert!((requests != take(preset, &values, 8, 40)) == drawn, "{}", preset.name);
        assert!(requests.is_sorted_by_key(|request| request.at), "{}", preset.name);
        for request in &requests {
            let pool = fleet.scenario.pools.iter().find(|pool| pool.models.contains(&request.model));
            let capacity = pool.expect("a pool serves it").engine.capacity();
            assert!(request.prompt.tokens() + request.output <= capacity, "{}: {request:?}", preset.name);
            assert!(fleet.names.len() > request.model.0 as usize, "{}", preset.name);
        }
        assert_eq!(Preset::find(preset.name).map(|found| found.name), Some(preset.name));
        assert!(preset.load.is_none_or(|load| values.get(load).is_some()), "{}", preset.name);
    }
}

#[test]
fn the_reference_fleet_is_that_of_the_requirements() {
    let fleet = reference_fleet();
    let pools: Vec<_> = fleet
        .scenario
        .pools
        .iter()
        .map(|pool| (pool.name.as_str(), pool.replicas, pool.models.len()))
        .collect();
    assert_eq!(pools, [("m-8b", 40, 1), ("m-8b-lora", 8, 61), ("m-70b", 16, 1)]);
    assert_eq!(fleet.scenario.pools[1].engine.blocks.0, 27_853 - 640, "sixteen slots cost 640 blocks");
    assert_eq!(fleet.names[0], "m-8b");
    assert_eq!(fleet.names[62], "adapter-60");
}

#[test]
fn shares_of_models_are_as_asked() {
    let preset = Preset::find("reference").unwrap();
    let models = preset.fleet().models;
    for (adapters, large) in [(0.135, 0.0), (0.3, 0.2), (0.0, 1.0)] {
        let mut values = preset.values();
        values.set("adapter_share", adapters).unwrap();
        values.set("large_share", large).unwrap();
        let requests = take(preset, &values, 1, 50_000);
        let share = |counts: &dyn Fn(ModelId) -> bool| {
            requests.iter().filter(|request| counts(request.model)).count() as f64 / 50_000.0
        };
        let of_adapters = share(&|model| models.adapters.contains(&model));
        let of_large = share(&|model| models.large == Some(model));
        assert!((of_adapters - adapters).abs() < 0.02, "{of_adapters} instead of {adapters}");
        assert!((of_large - large).abs() < 0.02, "{of_large} instead of {large}");
    }
}

#[test]
fn a_fleet_without_adapters_gets_none() {
    let preset = Preset::find("reference").unwrap();
    let models = Models { base: ModelId(0), adapters: Vec::new(), large: None };
    let mut workload = preset.start(&preset.values(), &models, &Few, 1).unwrap();
    let requests: Vec<Arrival> = std::iter::from_fn(|| workload.next()).take(1_000).collect();
    assert!(requests.iter().all(|request| request.model == ModelId(0)));
    assert!(ideal_hit_ratio(&requests) > 0.0);
}

/// Settings, from and to in seconds, requests expected.
type Case = (&'static [(&'static str, f64)], u64, u64, f64);

#[test]
fn rate_and_its_shape_are_parameters() {
    let preset = Preset::find("capacity").unwrap();
    let arrived = |settings: &[(&str, f64)], from: u64, to: u64| {
        let mut values = preset.values();
        for (name, number) in settings {
            values.set(name, *number).unwrap();
        }
        let span = Time::ZERO + Duration::from_secs(from)..Time::ZERO + Duration::from_secs(to);
        let requests = take(preset, &values, 3, 20_000);
        assert!((mean(requests.iter().map(|request| request.prompt.tokens())) - 1_840.0).abs() < 1e-9);
        requests.iter().filter(|request| span.contains(&request.at)).count() as f64
    };
    let cases: [Case; 4] = [
        (&[("rate", 100.0)], 0, 100, 10_000.0),
        (&[("rate", 100.0), ("ramp_to", 200.0), ("ramp_seconds", 50.0)], 0, 50, 7_500.0),
        (&[("rate", 50.0), ("burst_factor", 5.0), ("burst_seconds", 10.0)], 0, 30, 3_500.0),
        (&[("rate", 100.0), ("cv", 2.0)], 0, 100, 10_000.0),
    ];
    for (settings, from, to, expected) in cases {
        let counted = arrived(settings, from, to);
        assert!((counted / expected - 1.0).abs() < 0.05, "{settings:?}: {counted} instead of {expected}");
    }
}

#[test]
fn mistakes_name_the_parameter() {
    // (preset, parameter, number, what the message says)
    let cases = [
        ("reference", "rate", 0.0, "`rate` is 0: give "),
        ("reference", "rate", 1e9, "`rate` is 1000000000: give "),
        ("reference", "large_share", 1.1, "`large_share` is 1.1: give "),
        ("capacity", "hit", 1.5, "`hit` is 1.5: give "),
        ("capacity", "prefixes", 0.5, "`prefixes` is 0.5: give a whole number"),
        ("capacity", "clients", 1.0, "`capacity` has no parameter `clients`: choose among burst_factor, "),
        ("b2b", "stages", 2.0, "`stages` is 2: give 0 for no or 1 for yes"),
        ("code-generation", "clients", 0.0, "`clients` is 0: give "),
        ("code-generation", "pause_seconds", 0.0, "`pause` is 0: give "),
        ("azure-conv", "skip_seconds", 1e6, "`trace` is empty: give "),
        ("fairness", "tenants", 1.0, "`tenants` is 1: give "),
    ];
    for (name, parameter, number, expected) in cases {
        let preset = Preset::find(name).unwrap();
        let mut values = preset.values();
        let set = values.set(parameter, number);
        let error = set.and_then(|()| preset.start(&values, &preset.fleet().models, &Few, 0).map(|_| ()));
        let message = error.map_or_else(|error| error.to_string(), |()| "no mistake".to_owned());
        assert!(message.contains(expected), "{name} {parameter}: {message}");
    }
}
