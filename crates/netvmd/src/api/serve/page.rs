// SPDX-License-Identifier: Apache-2.0
//! The web page: the files in `crates/netvmd/web`, written by hand and embedded as they are.

use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};

/// The page may load only its own files, and connect only to its own server. Text cannot become HTML, style or script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

pub(in crate::api) async fn page() -> Response {
    file("text/html; charset=utf-8", include_str!("../../../web/index.html"))
}

pub(in crate::api) async fn script(Path(name): Path<String>) -> Response {
    let text = match &*name {
        "app.js" => include_str!("../../../web/app.js"),
        "capture.js" => include_str!("../../../web/capture.js"),
        "graph.js" => include_str!("../../../web/graph.js"),
        "trace.js" => include_str!("../../../web/trace.js"),
        "style.css" => return style(),
        _ => return super::super::no_such_path().await.into_response(),
    };
    file("text/javascript; charset=utf-8", text)
}

fn style() -> Response {
    file("text/css; charset=utf-8", include_str!("../../../web/style.css"))
}
