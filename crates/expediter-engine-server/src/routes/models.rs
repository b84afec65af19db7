//! What a replica serves: its models, the adapters among them, and where its KV events come from.

use http_body_util::Full;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::error::ErrorAnswer;
use crate::replica::Shared;
use crate::reply::{self, Content};

/// The base model first, then its adapters in order of loading.
pub(super) fn list(shared: &Shared) -> String {
    let (model, limit) = (&shared.settings.model, shared.settings.max_model_len.0);
    let base = card(shared, model, model, None, Some(limit));
    let adapters = shared.adapters.list();
    let adapters = adapters
        .iter()
        .map(|served| card(shared, &served.adapter.name, &served.adapter.path, Some(model), None));
    let cards: Vec<String> = std::iter::once(base).chain(adapters).collect();
    format!(r#"{{"object":"list","data":[{}]}}"#, cards.join(","))
}

fn card(shared: &Shared, id: &str, root: &str, parent: Option<&str>, limit: Option<u64>) -> String {
    let created = shared.clock.unix().as_secs();
    let permission = shared.request_ids(1).0;
    let json = |value: Value| value.to_string();
    let (id, root, parent, limit) =
        (json(id.into()), json(root.into()), json(parent.into()), json(limit.into()));
    format!(
        r#"{{"id":{id},"object":"model","created":{created},"owned_by":"vllm","root":{root},"parent":{parent},"max_model_len":{limit},"permission":[{{"id":"modelperm-{permission:016x}","object":"model_permission","created":{created},"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}}]}}"#
    )
}

/// What became of an order for an adapter. The good news has no content type.
pub(super) fn changed(outcome: Result<String, ErrorAnswer>) -> Response<Content> {
    match outcome {
        Ok(text) => reply::response(StatusCode::OK, None, Content::Whole(Full::new(text.into()))),
        Err(error) => reply::error(error),
    }
}

/// By rank, of which there is one. A port on every interface is `*`: its host is where the client reached us.
pub(super) fn event_sources(shared: &Shared) -> String {
    let Some((settings, events)) = shared.settings.kv_events.as_ref().zip(shared.events.as_ref()) else {
        return "{}".to_owned();
    };
    let endpoint = |address: std::net::SocketAddr| match address.ip() {
        ip if ip.is_unspecified() => format!("tcp://*:{}", address.port()),
        _ => format!("tcp://{address}"),
    };
    let (endpoint, replay) = (json!(endpoint(events.address)), json!(events.replay.map(endpoint)));
    let (topic, buffer_steps, hwm) = (json!(settings.topic), settings.buffer_steps, settings.hwm);
    format!(
        r#"{{"0":{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":{endpoint},"replay_endpoint":{replay},"buffer_steps":{buffer_steps},"hwm":{hwm},"max_queue_size":100000,"topic":{topic}}}}}"#
    )
}
