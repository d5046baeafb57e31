/work/wt/C/target2/debug/deps/netvm_conntrack-0bee7b701e8da953.d: /work/wt/C/clippy.toml crates/conntrack/src/lib.rs crates/conntrack/src/config.rs crates/conntrack/src/connection.rs crates/conntrack/src/events.rs crates/conntrack/src/index.rs crates/conntrack/src/nat/mod.rs crates/conntrack/src/nat/blocks.rs crates/conntrack/src/nat/deterministic.rs crates/conntrack/src/nat/edit.rs crates/conntrack/src/nat/mapped.rs crates/conntrack/src/nat/mappings.rs crates/conntrack/src/nat/pool.rs crates/conntrack/src/nat/rewrite.rs crates/conntrack/src/nat64/mod.rs crates/conntrack/src/nat64/error.rs crates/conntrack/src/nat64/front.rs crates/conntrack/src/nat64/icmp.rs crates/conntrack/src/nat64/ip.rs crates/conntrack/src/nat64/packet.rs crates/conntrack/src/nat64/prefix.rs crates/conntrack/src/nat64/translate.rs crates/conntrack/src/nat64/transport.rs crates/conntrack/src/numbers.rs crates/conntrack/src/packet/mod.rs crates/conntrack/src/packet/fragments.rs crates/conntrack/src/packet/headers.rs crates/conntrack/src/packet/kind.rs crates/conntrack/src/packet/tuple.rs crates/conntrack/src/queue.rs crates/conntrack/src/saved/mod.rs crates/conntrack/src/saved/file.rs crates/conntrack/src/saved/record.rs crates/conntrack/src/table/mod.rs crates/conntrack/src/table/confirm.rs crates/conntrack/src/table/connections.rs crates/conntrack/src/table/moves.rs crates/conntrack/src/table/nat64.rs crates/conntrack/src/table/quotas.rs crates/conntrack/src/table/slots.rs crates/conntrack/src/table/track.rs crates/conntrack/src/table/translate.rs crates/conntrack/src/table/translate/ports.rs crates/conntrack/src/table/views.rs crates/conntrack/src/tcp.rs Cargo.toml

/work/wt/C/target2/debug/deps/libnetvm_conntrack-0bee7b701e8da953.rmeta: /work/wt/C/clippy.toml crates/conntrack/src/lib.rs crates/conntrack/src/config.rs crates/conntrack/src/connection.rs crates/conntrack/src/events.rs crates/conntrack/src/index.rs crates/conntrack/src/nat/mod.rs crates/conntrack/src/nat/blocks.rs crates/conntrack/src/nat/deterministic.rs crates/conntrack/src/nat/edit.rs crates/conntrack/src/nat/mapped.rs crates/conntrack/src/nat/mappings.rs crates/conntrack/src/nat/pool.rs crates/conntrack/src/nat/rewrite.rs crates/conntrack/src/nat64/mod.rs crates/conntrack/src/nat64/error.rs crates/conntrack/src/nat64/front.rs crates/conntrack/src/nat64/icmp.rs crates/conntrack/src/nat64/ip.rs crates/conntrack/src/nat64/packet.rs crates/conntrack/src/nat64/prefix.rs crates/conntrack/src/nat64/translate.rs crates/conntrack/src/nat64/transport.rs crates/conntrack/src/numbers.rs crates/conntrack/src/packet/mod.rs crates/conntrack/src/packet/fragments.rs crates/conntrack/src/packet/headers.rs crates/conntrack/src/packet/kind.rs crates/conntrack/src/packet/tuple.rs crates/conntrack/src/queue.rs crates/conntrack/src/saved/mod.rs crates/conntrack/src/saved/file.rs crates/conntrack/src/saved/record.rs crates/conntrack/src/table/mod.rs crates/conntrack/src/table/confirm.rs crates/conntrack/src/table/connections.rs crates/conntrack/src/table/moves.rs crates/conntrack/src/table/nat64.rs crates/conntrack/src/table/quotas.rs crates/conntrack/src/table/slots.rs crates/conntrack/src/table/track.rs crates/conntrack/src/table/translate.rs crates/conntrack/src/table/translate/ports.rs crates/conntrack/src/table/views.rs crates/conntrack/src/tcp.rs Cargo.toml

/work/wt/C/clippy.toml:
crates/conntrack/src/lib.rs:
crates/conntrack/src/config.rs:
crates/conntrack/src/connection.rs:
crates/conntrack/src/events.rs:
crates/conntrack/src/index.rs:
crates/conntrack/src/nat/mod.rs:
crates/conntrack/src/nat/blocks.rs:
crates/conntrack/src/nat/deterministic.rs:
crates/conntrack/src/nat/edit.rs:
crates/conntrack/src/nat/mapped.rs:
crates/conntrack/src/nat/mappings.rs:
crates/conntrack/src/nat/pool.rs:
crates/conntrack/src/nat/rewrite.rs:
crates/conntrack/src/nat64/mod.rs:
crates/conntrack/src/nat64/error.rs:
crates/conntrack/src/nat64/front.rs:
crates/conntrack/src/nat64/icmp.rs:
crates/conntrack/src/nat64/ip.rs:
crates/conntrack/src/nat64/packet.rs:
crates/conntrack/src/nat64/prefix.rs:
crates/conntrack/src/nat64/translate.rs:
crates/conntrack/src/nat64/transport.rs:
crates/conntrack/src/numbers.rs:
crates/conntrack/src/packet/mod.rs:
crates/conntrack/src/packet/fragments.rs:
crates/conntrack/src/packet/headers.rs:
crates/conntrack/src/packet/kind.rs:
crates/conntrack/src/packet/tuple.rs:
crates/conntrack/src/queue.rs:
crates/conntrack/src/saved/mod.rs:
crates/conntrack/src/saved/file.rs:
crates/conntrack/src/saved/record.rs:
crates/conntrack/src/table/mod.rs:
crates/conntrack/src/table/confirm.rs:
crates/conntrack/src/table/connections.rs:
crates/conntrack/src/table/moves.rs:
crates/conntrack/src/table/nat64.rs:
crates/conntrack/src/table/quotas.rs:
crates/conntrack/src/table/slots.rs:
crates/conntrack/src/table/track.rs:
crates/conntrack/src/table/translate.rs:
crates/conntrack/src/table/translate/ports.rs:
crates/conntrack/src/table/views.rs:
crates/conntrack/src/tcp.rs:
Cargo.toml:

# env-dep:CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
# env-dep:CLIPPY_CONF_DIR
