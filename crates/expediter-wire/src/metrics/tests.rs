use super::*;

fn report(page: &str) -> EngineReport {
    parse_metrics(page.as_bytes()).report
}

#[test]
fn names_in_every_spelling_that_was_seen() {
    let cases = [
        "vllm:num_requests_running 3\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\nvllm:num_preemptions_total 7\n",
        "vllm_num_requests_running 3\nvllm_num_requests_waiting 2\nvllm_kv_cache_usage_perc 0.5\nvllm_num_preemptions_total 7\n",
        "num_requests_running 3\nnum_requests_waiting 2\nkv_cache_usage_perc 0.5\nnum_preemptions_total 7\n",
        "vllm:num_requests_running 3.0\nvllm:num_requests_waiting 2e0\nvllm:gpu_cache_usage_perc 5e-1\nvllm:num_preemptions 7\n",
        "vllm:num_requests_running{} 3\r\nvllm:num_requests_waiting{a=\"b\",} 2 1700000000000\r\nvllm:kv_cache_usage_perc\t0.5\r\nvllm:num_preemptions_total 7\r\n",
    ];
    for page in cases {
        let found = report(page);
        let expected = (Some(3), Some(2), Some(0.5), Some(7));
        assert_eq!((found.running, found.waiting, found.kv_usage, found.preemptions), expected, "{page}");
    }
}

#[test]
fn one_thing_under_two_names_counts_once() {
    let page = "num_requests_running 9\nvllm_num_requests_running 8\nvllm:num_requests_running 3\nvllm_num_requests_running 8\n";
    assert_eq!(report(page).running, Some(3));
    let page = "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.5\n";
    assert_eq!(report(page).kv_usage, Some(0.5));
}

#[test]
fn several_engines_are_added_up() {
    let page = r#"
vllm:num_requests_running{engine="0",model_name="m"} 3
vllm:num_requests_running{engine="1",model_name="m"} 4
vllm:num_requests_waiting{engine="0",model_name="m"} 1
vllm:num_requests_waiting{engine="1",model_name="m"} 0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0"} 5
vllm:num_preemptions_total{engine="1"} 6
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="200"} 1.0
process_start_time_seconds 1.7e+09
"#;
    let reading = parse_metrics(page.as_bytes());
    let expected = EngineReport {
        running: Some(7),
        waiting: Some(1),
        kv_usage: Some(0.75),
        preemptions: Some(11),
        block_size: Some(16),
        blocks: Some(300),
        progress: reading.report.progress,
        started_at: Some(1.7e9),
    };
    assert_eq!(reading, MetricsReading { report: expected, engines: 2, malformed_lines: 0 });
}

#[test]
fn what_is_no_count_is_unknown_and_never_zero() {
    for value in ["NaN", "+Inf", "-Inf", "-1", "1.5", "1e300"] {
        let page = format!("vllm:num_requests_running{{engine=\"0\"}} {value}\n");
        assert_eq!(report(&page).running, None, "{value}");
        let both = format!("{page}vllm:num_requests_running{{engine=\"1\"}} 4\n");
        assert_eq!(report(&both).running, None, "{value} of one engine of two");
    }
    for (value, expected) in
        [("NaN", None), ("-0.1", None), ("1.0000001", Some(1.0)), ("85", None), ("1", Some(1.0))]
    {
        assert_eq!(report(&format!("vllm:kv_cache_usage_perc {value}\n")).kv_usage, expected, "{value}");
    }
    for (labels, block_size, blocks) in [
        (r#"block_size="16",num_gpu_blocks="None""#, Some(16), None),
        (r#"block_size="None",num_gpu_blocks="9""#, None, Some(9)),
        (r#"block_size="0",num_gpu_blocks="x""#, None, None),
        (r#"x_block_size="16""#, None, None),
        (r#"a="\"}block_size=\"1",block_size="16",num_gpu_blocks="9""#, Some(16), Some(9)),
    ] {
        let found = report(&format!("vllm:cache_config_info{{{labels}}} 1.0\n"));
        assert_eq!((found.block_size, found.blocks), (block_size, blocks), "{labels}");
    }
    let differ = "vllm:cache_config_info{block_size=\"16\"} 1\nvllm:cache_config_info{block_size=\"32\"} 1\n";
    assert_eq!(report(differ).block_size, None, "engines of one replica agree");
    assert_eq!(report(""), EngineReport::default());
}

#[test]
fn a_cut_last_line_has_no_effect() {
    let page = "vllm:num_requests_waiting 2\nvllm:num_requests_running 125\n";
    for cut in 0..page.len() {
        let found = report(&page[..cut]);
        assert_eq!(found.running, None, "{:?}", &page[..cut]);
        assert_eq!(found.waiting, (cut > 27).then_some(2), "{:?}", &page[..cut]);
        assert_eq!(parse_metrics(&page.as_bytes()[..cut]).malformed_lines, 0);
    }
    assert_eq!(report(page).running, Some(125));
}

#[test]
fn lines_that_are_no_samples_are_counted_and_passed_over() {
    let lines: [(&[u8], bool); 26] = [
        (b"", true),
        (b"# HELP x y", true),
        (b"#", true),
        (b"a 1", true),
        (b"a{} 1", true),
        (b"a{b=\"c\"} 1", true),
        (b"a{b=\"c\",} 1", true),
        (b"a{ b = \"c\" , d = \"e\" } 1", true),
        (b"a{b=\"\\\\\\\"\\n}{\"} 1", true),
        (b"a{b=\"\xFF\"} 1", true),
        (b"a:b_c{d=\"e\"}1 1700000000", true),
        (b"a", false),
        (b"a b", false),
        (b"a 1 2 3", false),
        (b"1a 1", false),
        (b"a{ 1", false),
        (b"a{b=\"c} 1", false),
        (b"a{b=c} 1", false),
        (b"a{b} 1", false),
        (b"a{=\"c\"} 1", false),
        (b"a{b=\"c\" d=\"e\"} 1", false),
        (b"a{b=\"c\"}", false),
        (b"a }1", false),
        (b"{b=\"c\"} 1", false),
        (b"\xFF 1", false),
        (b"<html>", false),
    ];
    for (line, good) in lines {
        let page = [line, b"\nvllm:num_requests_running 3\n"].concat();
        let reading = parse_metrics(&page);
        assert_eq!(reading.malformed_lines, u32::from(!good), "{}", line.escape_ascii());
        assert_eq!(reading.report.running, Some(3), "{}", line.escape_ascii());
    }
}

#[test]
fn progress_changes_with_what_the_engine_counts_and_with_nothing_else() {
    let page = "vllm:generation_tokens_total 10\nvllm:generation_tokens_created 1.5\nhttp_requests_total 7\n";
    let progress = |page: &str| report(page).progress;
    let same = [
        ("a scrape counted", page.replace("requests_total 7", "requests_total 8")),
        ("a time of creation", page.replace("created 1.5", "created 1.6")),
        ("a comment", format!("# x\n{page}")),
    ];
    for (name, other) in same {
        assert_eq!(progress(&other), progress(page), "{name}");
    }
    let different = [
        ("a token", page.replace("tokens_total 10", "tokens_total 11")),
        ("a new series", format!("{page}vllm:x{{reason=\"stop\"}} 1\n")),
        ("a renamed one", page.replace("vllm:", "vllm_")),
        ("a plain one", format!("{page}num_requests_running 1\n")),
    ];
    for (name, other) in different {
        assert_ne!(progress(&other), progress(page), "{name}");
    }
}
