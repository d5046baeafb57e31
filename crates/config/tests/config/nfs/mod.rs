// SPDX-License-Identifier: Apache-2.0
//! NFs: where they may steer flows, and bounds of their replicas.

use netvm_config::{Kind, to_toml};
use netvm_model::{ChainId, NfStart, PortId, RoleId, Scale, SteerTo};

use crate::{findings, found, host, is, planned};

/// Two NFs of one group and one of another; a chain of the first, and one to which only it may lead. `keys` are the
/// first one's.
fn with(keys: &str) -> String {
    format!(
        "[[group]]\nname = \"edge\"\n[[group]]\nname = \"other\"\n\
         [[port]]\nname = \"in\"\nkind = \"source\"\n[[port]]\nname = \"out\"\nkind = \"sink\"\n\
         [[nf]]\nrole = \"a\"\ngroup = \"edge\"\n{keys}\n[[nf]]\nrole = \"b\"\ngroup = \"edge\"\n\
         [[nf]]\nrole = \"c\"\ngroup = \"other\"\n\
         [[chain]]\nname = \"main\"\nhops = [\"a\"]\noutput = \"out\"\n\
         [[chain]]\nname = \"scrub\"\nhops = [\"b\"]\noutput = \"out\"\n\
         [[rule]]\nfrom = \"in\"\nchain = \"main\"\n"
    )
}

#[test]
fn destinations_are_read_and_written() {
    let keys = "flow_verdicts = 9\nsteer = [{ chain = \"scrub\" }, { role = \"b\" }, { out = \"out\" }]";
    let host = host(&with(keys));
    let expected = [SteerTo::Chain(ChainId(1)), SteerTo::Role(RoleId(1)), SteerTo::Port(PortId(1))];
    assert_eq!(host.nfs[0].steer, expected);
    assert_eq!(crate::host(&to_toml(&host)).nfs, host.nfs);
    // The chain to which only the NF leads is not unused.
    assert_eq!(found(&with(keys)), []);
    assert_eq!(found(&with("")).iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [Kind::Unused]);
}

#[test]
fn wrong_destinations_have_a_remedy() {
    let cases = [
        ("steer = [{ chain = \"scrub\" }]", "conflict", "add `flow_verdicts`"),
        (
            "flow_verdicts = 1\nsteer = [{ chain = \"scrap\" }]",
            "unknown_name",
            "the chains are `main`, `scrub`",
        ),
        ("flow_verdicts = 1\nsteer = [{}]", "missing_key", "name a `chain`, a `role` or a port"),
        ("flow_verdicts = 1\nsteer = [{ chain = \"scrub\", role = \"b\" }]", "conflict", "keep one"),
        ("flow_verdicts = 1\nsteer = [\"scrub\"]", "wrong_type", "a table"),
        ("flow_verdicts = 1\nsteer = \"scrub\"", "wrong_type", "a list of tables"),
        ("flow_verdicts = 1\nsteer = [{ role = \"c\" }]", "conflict", "a chain that begins with c"),
    ];
    for (keys, code, remedy) in cases {
        let found = findings(&with(keys));
        assert!(found.iter().any(|finding| is(finding, code, remedy)), "{keys}: {found:#?}");
    }
}

#[test]
fn bounds_of_replicas_are_read_and_written() {
    let read = |keys: &str| {
        let host = host(&with(&format!("command = [\"a\"]\n{keys}")));
        assert_eq!(crate::host(&to_toml(&host)).nfs, host.nfs);
        match &host.nfs[0].start {
            NfStart::Managed { replicas, scale, .. } => (*replicas, *scale, host.nfs[0].scales()),
            NfStart::External { .. } | NfStart::Ports(_) => panic!("{keys}"),
        }
    };
    assert_eq!(read("replicas = 3"), (3, None, false));
    let scale = Scale { most: 3, grow_above: 60, shrink_below: 20, seconds: 5, drain: 60 };
    assert_eq!(read("balance = \"sticky\"\nreplicas = { max = 3 }"), (1, Some(scale), true));
    let all = "balance = \"sticky\"\nreplicas = { min = 2, max = 4, grow_above = 9, shrink_below = 3, for = 1, drain = 0 }";
    let scale = Scale { most: 4, grow_above: 9, shrink_below: 3, seconds: 1, drain: 0 };
    assert_eq!(read(all), (2, Some(scale), true));
}

#[test]
fn wrong_bounds_have_a_remedy() {
    let sticky =
        |replicas: &str| format!("command = [\"a\"]\nbalance = \"sticky\"\nreplicas = {{ {replicas} }}");
    let cases = [
        (sticky("min = 2"), "missing_key", "such as `max = 4`"),
        (sticky("min = 2, max = 2"), "conflict", "raise `max`"),
        (sticky("max = 9"), "bad_value", "from 1 to 8"),
        (sticky("max = 2, grow_above = 20"), "conflict", "keep a distance"),
        (sticky("max = 2, for = 0"), "bad_value", "from 1 to 3600"),
        (sticky("max = 2, most = 3"), "unknown_key", "keys of replicas are"),
        ("command = [\"a\"]\nreplicas = { max = 2 }".to_owned(), "conflict", "add `balance = \"sticky\"`"),
        (sticky("max = 2") + "\nstandby = 1", "conflict", "remove `standby`"),
        (sticky("max = 5") + "\nthreads = 2", "too_many", "at most 8 threads"),
        ("replicas = { max = 2 }".to_owned(), "conflict", "remove it"),
    ];
    for (keys, code, remedy) in cases {
        let found = findings(&with(&keys));
        assert!(found.iter().any(|finding| is(finding, code, remedy)), "{keys}: {found:#?}");
    }
}

#[test]
fn new_bounds_and_destinations_restart_nothing() {
    let before = with("command = [\"a\"]\nbalance = \"sticky\"\nflow_verdicts = 1\nreplicas = { max = 2 }");
    let after = before.replace("max = 2 }", "max = 3, for = 9 }\nsteer = [{ chain = \"scrub\" }]");
    let plan = planned(&before, &after);
    assert!(plan.contains("steer") && plan.contains("replicas"), "{plan}");
    assert!(!plan.contains("restart"), "{plan}");
}
