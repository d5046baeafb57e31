// SPDX-License-Identifier: Apache-2.0
//! The API as OpenAPI 3.1, made from the types. netvmd serves it at `GET /openapi.json`.

mod operations;

use netvm_model::Role;
use utoipa::ToSchema;
use utoipa::openapi::extensions::ExtensionsBuilder;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn, PathItemBuilder};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ArrayBuilder, Object, Schema, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, OpenApi, OpenApiBuilder, PathsBuilder, Ref, RefOr,
    Required, ResponseBuilder,
};

use crate::{ApiError, ConnectionEvent};
use operations::operations;

const HEAD: &str = "# HTTP API

netvmd serves HTTP/1.1 on its Unix socket; `netvm` and every other client use it. `GET /openapi.json` is the whole description (OpenAPI 3.1), made from
the types of the code; `netvm openapi` prints it without a netvmd. This page is its list of operations: `netvm openapi --markdown > docs/reference/api.md`
(a test compares them). Every error is an `ApiError`, whose `message` says what to do.

```console
$ curl --unix-socket /run/netvm/api.sock http://netvm/v1/status
$ curl --unix-socket /run/netvm/api.sock http://netvm/openapi.json > netvm.json      # for code generators
```

The role is the least one that a client needs: `view`, `capture`, `operate`, `admin`; each may also do what those before it may. A client of the Unix socket is
`admin`; [how others get their role](netvmd.md#roles). A client without it gets status 403.

| request | role | query | body | reply | what |
|---|---|---|---|---|---|
";

type Schemas = Vec<(String, RefOr<Schema>)>;

/// A part of a query: its name, its type and what it does.
type QueryPart = (&'static str, Type, &'static str);

/// What a body holds.
enum Body {
    None,
    /// A type of this crate.
    Json(Box<RefOr<Schema>>),
    /// Something else, with its media type.
    Text(&'static str),
}

/// One operation of the API.
struct Operation {
    method: HttpMethod,
    /// The least role whose clients may use it.
    role: Role,
    path: &'static str,
    summary: &'static str,
    query: &'static [QueryPart],
    request: Body,
    reply: Body,
}

/// The schemas that bodies refer to.
#[derive(Default)]
struct Collected(Schemas);

impl Collected {
    fn one<T: ToSchema>(&mut self) -> Body {
        Body::Json(Box::new(self.reference::<T>().into()))
    }

    fn list<T: ToSchema>(&mut self) -> Body {
        Body::Json(Box::new(ArrayBuilder::new().items(self.reference::<T>()).build().into()))
    }

    fn reference<T: ToSchema>(&mut self) -> Ref {
        let name = T::name().into_owned();
        T::schemas(&mut self.0);
        self.0.push((name.clone(), T::schema()));
        Ref::from_schema_name(name)
    }
}

/// The whole description.
#[must_use]
pub fn openapi() -> OpenApi {
    let mut schemas = Collected::default();
    let mut paths = PathsBuilder::new();
    for operation in operations(&mut schemas) {
        let (path, method) = (operation.path, operation.method.clone());
        let item = PathItemBuilder::new().operation(method, describe(operation));
        paths = paths.path(path, item.build());
    }
    schemas.reference::<ApiError>();
    // A line of a long answer.
    schemas.reference::<ConnectionEvent>();
    let token = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    let components = ComponentsBuilder::new().schemas_from_iter(schemas.0).security_scheme("token", token);
    let about = "The API of netvmd, served on its Unix socket (by default /run/netvm/api.sock), whose owner and mode say who \
                 may use it. If the configuration has `web` in `[api]`, the reading part is also served on that loopback \
                 address, for those who have the token; with `remote` in `[api]`, all of it to other machines, by HTTPS with client \
                 certificates. `x-netvm-role` is the least role that an operation needs. Times are in seconds, sizes in bytes.";
    let info = InfoBuilder::new().title("netvmd").version(env!("CARGO_PKG_VERSION")).description(Some(about));
    OpenApiBuilder::new().info(info.build()).paths(paths).components(Some(components.build())).build()
}

fn describe(operation: Operation) -> OperationBuilder {
    let role = ExtensionsBuilder::new().add("x-netvm-role", operation.role.word());
    let mut described =
        OperationBuilder::new().summary(Some(operation.summary)).extensions(Some(role.build()));
    for name in operation.path.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
        let text = Object::with_type(SchemaType::Type(Type::String));
        let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path);
        described = described.parameter(parameter.required(Required::True).schema(Some(text)).build());
    }
    for (name, kind, about) in operation.query {
        let schema = Object::with_type(SchemaType::Type(kind.clone()));
        let parameter = ParameterBuilder::new().name(*name).parameter_in(ParameterIn::Query);
        described = described.parameter(parameter.description(Some(*about)).schema(Some(schema)).build());
    }
    if let Some((media, schema)) = content(operation.request) {
        let content = ContentBuilder::new().schema(schema).build();
        described = described.request_body(Some(RequestBodyBuilder::new().content(media, content).build()));
    }
    let mut reply = ResponseBuilder::new().description("Success");
    if let Some((media, schema)) = content(operation.reply) {
        reply = reply.content(media, ContentBuilder::new().schema(schema).build());
    }
    let error = ContentBuilder::new().schema(Some(Ref::from_schema_name("ApiError"))).build();
    let error = ResponseBuilder::new()
        .description("403 the client's role does not permit it; 404 no such thing; 409 another change, or a restart is needed; 422 wrong input; 500 failed, nothing changed; 503 starting, stopping or too many clients")
        .content("application/json", error);
    described.response("200", reply.build()).response("default", error.build())
}

/// The least role for each operation, by method and path.
#[must_use]
pub fn roles() -> Vec<(&'static str, &'static str, Role)> {
    let all = operations(&mut Collected::default());
    all.into_iter().map(|one| (word(&one.method), one.path, one.role)).collect()
}

const fn word(method: &HttpMethod) -> &'static str {
    match method {
        HttpMethod::Post => "POST",
        HttpMethod::Delete => "DELETE",
        _ => "GET",
    }
}

/// The page `docs/reference/api.md`.
#[must_use]
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for one in operations(&mut Collected::default()) {
        let method = word(&one.method);
        let name = |body: &Body| match body {
            Body::None => String::new(),
            Body::Text(media) => (*media).to_owned(),
            Body::Json(schema) if let RefOr::Ref(to) = &**schema => {
                format!("`{}`", to.ref_location.rsplit('/').next().unwrap_or_default())
            }
            Body::Json(_) => "list".to_owned(),
        };
        let query: Vec<String> = one.query.iter().map(|(name, ..)| format!("`{name}`")).collect();
        page.push_str(&format!(
            "| `{method} {}` | {} | {} | {} | {} | {} |\n",
            one.path,
            one.role.word(),
            query.join(", "),
            name(&one.request),
            name(&one.reply),
            one.summary
        ));
    }
    page
}

/// The media type and schema of a body.
fn content(body: Body) -> Option<(&'static str, Option<RefOr<Schema>>)> {
    match body {
        Body::None => None,
        Body::Json(schema) => Some(("application/json", Some(*schema))),
        Body::Text(media) => Some((media, None)),
    }
}

#[cfg(test)]
mod tests {
    use netvm_counters::{Counted, TABLES, Table};
    use serde_json::Value;

    use super::*;
    use crate::{
        ChainInfo, ConnectionCounts, FlowMonitorInfo, GroupInfo, NatTargetInfo, NfPackets, PortInfo,
        PuntInfo, RouterInfo, RouterInterfaceInfo, ShareInfo, ThreadInfo, TxQueueInfo, WorkerInfo,
    };

    /// A property of a schema, or of a part of it.
    fn property<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
        let parts = schema["allOf"].as_array().into_iter().flatten();
        parts.chain([schema]).find_map(|part| part["properties"].get(name))
    }

    #[test]
    fn every_counter_is_described() {
        fn of<T: Counted + ToSchema>() -> (String, &'static Table) {
            (T::name().into_owned(), T::TABLE)
        }
        let described = [
            of::<PortInfo>(),
            of::<ShareInfo>(),
            of::<TxQueueInfo>(),
            of::<ChainInfo>(),
            of::<NfPackets>(),
            of::<ThreadInfo>(),
            of::<WorkerInfo>(),
            of::<FlowMonitorInfo>(),
            of::<ConnectionCounts>(),
            of::<GroupInfo>(),
            of::<RouterInfo>(),
            of::<RouterInterfaceInfo>(),
            of::<NatTargetInfo>(),
            of::<PuntInfo>(),
        ];
        assert_eq!(described.each_ref().map(|(_, table)| *table), TABLES);
        let document = serde_json::to_value(openapi()).unwrap();
        for (name, table) in described {
            let schema = &document["components"]["schemas"][&name];
            for counter in table.counters {
                let Some(property) = property(schema, counter.name) else {
                    panic!("{name}: {}", counter.name)
                };
                assert_eq!(property["description"], counter.text, "{name}: {}", counter.name);
            }
        }
    }
}
