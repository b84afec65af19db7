//! A metrics page of any bytes.

use expediter_wire::metrics::parse_metrics;

/// Reads a page.
pub(crate) fn check(page: &[u8]) {
    let reading = parse_metrics(page);
    let report = &reading.report;
    assert!(report.kv_usage.is_none_or(|usage| (0.0..=1.0).contains(&usage)));
    assert!(report.started_at.is_none_or(|time| time.is_finite() && time > 0.0));
    assert!(report.running.is_none() || reading.engines > 0);
    assert_ne!(report.block_size, Some(0));

    let whole = page.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    assert_eq!(parse_metrics(&page[..whole]), reading, "a line without its end has no effect");

    let commented = [&page[..whole], b"# HELP vllm:num_requests_running x\n\n"].concat();
    assert_eq!(parse_metrics(&commented), reading, "comments have no effect");
    let busier = [&page[..whole], b"vllm:x_total 1\n"].concat();
    assert_ne!(parse_metrics(&busier).report.progress, report.progress, "work shows in the digest");
    let made = [&page[..whole], b"vllm:x_created 1\n"].concat();
    assert_eq!(parse_metrics(&made), reading, "the time at which a counter was made is no work");
}
