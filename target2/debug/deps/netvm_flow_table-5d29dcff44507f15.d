/work/wt/C/target2/debug/deps/netvm_flow_table-5d29dcff44507f15.d: /work/wt/C/clippy.toml crates/flow-table/src/lib.rs crates/flow-table/src/table.rs crates/flow-table/src/tags.rs Cargo.toml

/work/wt/C/target2/debug/deps/libnetvm_flow_table-5d29dcff44507f15.rmeta: /work/wt/C/clippy.toml crates/flow-table/src/lib.rs crates/flow-table/src/table.rs crates/flow-table/src/tags.rs Cargo.toml

/work/wt/C/clippy.toml:
crates/flow-table/src/lib.rs:
crates/flow-table/src/table.rs:
crates/flow-table/src/tags.rs:
Cargo.toml:

# env-dep:CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
# env-dep:CLIPPY_CONF_DIR
