/work/wt/C/target2/debug/deps/netvm_wire-531505cd8f93e2b5.d: /work/wt/C/clippy.toml crates/wire/src/lib.rs crates/wire/src/build/mod.rs crates/wire/src/build/write.rs crates/wire/src/checksum.rs crates/wire/src/flow/mod.rs crates/wire/src/flow/hash.rs crates/wire/src/gro.rs crates/wire/src/parse/mod.rs crates/wire/src/parse/fast.rs crates/wire/src/parse/headers.rs crates/wire/src/parse/ipv4.rs crates/wire/src/parse/ipv6.rs crates/wire/src/parse/malformed.rs crates/wire/src/parse/transport.rs crates/wire/src/partial.rs crates/wire/src/rewrite.rs crates/wire/src/segment.rs crates/wire/src/values/mod.rs crates/wire/src/values/address.rs crates/wire/src/values/ether.rs crates/wire/src/values/net.rs crates/wire/src/values/port_range.rs crates/wire/src/values/proto.rs Cargo.toml

/work/wt/C/target2/debug/deps/libnetvm_wire-531505cd8f93e2b5.rmeta: /work/wt/C/clippy.toml crates/wire/src/lib.rs crates/wire/src/build/mod.rs crates/wire/src/build/write.rs crates/wire/src/checksum.rs crates/wire/src/flow/mod.rs crates/wire/src/flow/hash.rs crates/wire/src/gro.rs crates/wire/src/parse/mod.rs crates/wire/src/parse/fast.rs crates/wire/src/parse/headers.rs crates/wire/src/parse/ipv4.rs crates/wire/src/parse/ipv6.rs crates/wire/src/parse/malformed.rs crates/wire/src/parse/transport.rs crates/wire/src/partial.rs crates/wire/src/rewrite.rs crates/wire/src/segment.rs crates/wire/src/values/mod.rs crates/wire/src/values/address.rs crates/wire/src/values/ether.rs crates/wire/src/values/net.rs crates/wire/src/values/port_range.rs crates/wire/src/values/proto.rs Cargo.toml

/work/wt/C/clippy.toml:
crates/wire/src/lib.rs:
crates/wire/src/build/mod.rs:
crates/wire/src/build/write.rs:
crates/wire/src/checksum.rs:
crates/wire/src/flow/mod.rs:
crates/wire/src/flow/hash.rs:
crates/wire/src/gro.rs:
crates/wire/src/parse/mod.rs:
crates/wire/src/parse/fast.rs:
crates/wire/src/parse/headers.rs:
crates/wire/src/parse/ipv4.rs:
crates/wire/src/parse/ipv6.rs:
crates/wire/src/parse/malformed.rs:
crates/wire/src/parse/transport.rs:
crates/wire/src/partial.rs:
crates/wire/src/rewrite.rs:
crates/wire/src/segment.rs:
crates/wire/src/values/mod.rs:
crates/wire/src/values/address.rs:
crates/wire/src/values/ether.rs:
crates/wire/src/values/net.rs:
crates/wire/src/values/port_range.rs:
crates/wire/src/values/proto.rs:
Cargo.toml:

# env-dep:CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
# env-dep:CLIPPY_CONF_DIR
