//! Metrics pages whose content is known.

use expediter_wire::metrics::parse_metrics;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// What a page says of its engines.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    prefix: &'static str,
    /// (running, waiting, KV usage in thousandths) of engine 0, 1, …; none where it reports no number.
    engines: Vec<(Option<u32>, Option<u32>, Option<u32>)>,
    line_end: &'static str,
    label: String,
}

pub(crate) fn page() -> impl Strategy<Value = Page> {
    let count = || prop_oneof![5 => (0_u32..1000).prop_map(Some), 1 => Just(None)];
    let usage = prop_oneof![5 => (0_u32..=1000).prop_map(Some), 1 => Just(None)];
    (
        select(vec!["vllm:", "vllm_", ""]),
        vec((count(), count(), usage), 1..5),
        select(vec!["\n", "\r\n", "\n\n"]),
        r#"[a-z{}=, ]{0,6}(\\\\|\\"|\\n)?"#,
    )
        .prop_map(|(prefix, engines, line_end, label)| Page { prefix, engines, line_end, label })
}

impl Page {
    pub(crate) fn text(&self) -> String {
        let number = |value: Option<f64>| value.map_or("NaN".to_owned(), |value| format!("{value:?}"));
        let mut lines = vec!["# TYPE vllm:num_requests_running gauge".to_owned()];
        for (engine, (running, waiting, usage)) in self.engines.iter().enumerate() {
            for (name, value) in [
                ("num_requests_running", running.map(f64::from)),
                ("num_requests_waiting", waiting.map(f64::from)),
                ("kv_cache_usage_perc", usage.map(|usage| f64::from(usage) / 1000.0)),
            ] {
                let Self { prefix, label, .. } = self;
                lines.push(format!(
                    "{prefix}{name}{{model_name=\"{label}\",engine=\"{engine}\"}} {}",
                    number(value)
                ));
            }
        }
        lines.push(String::new());
        lines.join(self.line_end)
    }

    pub(crate) fn check(&self) {
        let reading = parse_metrics(self.text().as_bytes());
        let sum = |values: Vec<Option<u32>>| values.into_iter().sum::<Option<u32>>().map(u64::from);
        let usages: Option<Vec<u32>> = self.engines.iter().map(|engine| engine.2).collect();
        let fullest =
            usages.and_then(|usages| usages.into_iter().max()).map(|usage| f64::from(usage) / 1000.0);
        assert_eq!(reading.report.running, sum(self.engines.iter().map(|engine| engine.0).collect()));
        assert_eq!(reading.report.waiting, sum(self.engines.iter().map(|engine| engine.1).collect()));
        assert_eq!(reading.report.kv_usage, fullest);
        assert_eq!((reading.engines as usize, reading.malformed_lines), (self.engines.len(), 0));
    }
}
