// SPDX-License-Identifier: Apache-2.0
//! Programs with two ports: their ports, and what is refused.

use netvm_config::Kind;
use netvm_model::{Attach, PairSide, Resource};

use crate::{findings, found, host, is, line_of, planned};

/// A program in a chain and in its reverse.
fn text(program: &str, reverse: &str) -> String {
    format!(
        "[[port]]\nname = \"a\"\nkind = \"source\"\nforward = {{ chain = \"out\" }}\n\
         [[port]]\nname = \"b\"\nkind = \"source\"\nforward = {{ chain = \"in\" }}\n\
         [[nf]]\nrole = \"ids\"\n{program}\n\
         [[chain]]\nname = \"out\"\nhops = [\"ids\"]\noutput = \"b\"\n\
         [[chain]]\nname = \"in\"\nhops = [\"ids\"]\noutput = \"a\"\n{reverse}\n"
    )
}

#[test]
fn an_instance_has_a_port_on_each_side() {
    let host = host(&text("attach = \"tap\"\nreplicas = 2\nstandby = 1\nmtu = 1400", "reverse = \"out\""));
    let names: Vec<&str> = host.ports[2..].iter().map(|port| port.name.as_str()).collect();
    let expected = ["ids.0.left", "ids.0.right", "ids.1.left", "ids.1.right", "ids.2.left", "ids.2.right"];
    assert_eq!(names, expected);
    let end = host.pair_end(host.ports[5].id).unwrap();
    assert_eq!((end.nf.role.as_str(), end.instance, end.side), ("ids", 1, PairSide::Right));
    assert!(host.ports[2..].iter().all(|port| port.mtu == 1400 && host.is_implied(port.id)));
    assert!(host.pair_end(host.ports[0].id).is_none());
    let hops: Vec<_> = host.pair_hops(&host.nfs[0]).map(|hop| hop.enters).collect();
    assert_eq!(hops, [PairSide::Left, PairSide::Right]);
}

#[test]
fn a_program_with_one_port_has_one_for_both_directions() {
    let host = host(&text("attach = \"veth\"\nports = 1\nreplicas = 2", "reverse = \"out\""));
    let names: Vec<&str> = host.ports[2..].iter().map(|port| port.name.as_str()).collect();
    assert_eq!(names, ["ids.0.port", "ids.1.port"]);
    let pair = host.nfs[0].pair().unwrap();
    assert!(pair.ports.iter().all(|[left, right]| left == right), "{:?}", pair.ports);
    let end = host.pair_end(host.ports[3].id).unwrap();
    assert_eq!((end.instance, end.side), (1, PairSide::Only));
    let hops: Vec<_> = host.pair_hops(&host.nfs[0]).map(|hop| hop.enters).collect();
    assert_eq!(hops, PairSide::BOTH);
    let again = netvm_config::parse("again", &netvm_config::to_toml(&host)).unwrap().host;
    assert_eq!(again, host);
}

#[test]
fn each_way_to_attach_has_ports_of_its_kind() {
    for (word, attach, kind) in [
        ("veth", Attach::Veth, "af_packet"),
        ("tap", Attach::TapDevice, "container"),
        ("af_xdp", Attach::AfXdp, "af_xdp"),
        ("vhost-user", Attach::VhostUser, "vhost-user"),
        ("memif", Attach::Memif, "memif"),
    ] {
        let host = host(&text(&format!("attach = \"{word}\""), "reverse = \"out\""));
        assert_eq!(host.nfs[0].pair().unwrap().attach, attach);
        assert!(host.ports[2..].iter().all(|port| port.kind.word() == kind), "{word}");
        let resources: Vec<Resource<'_>> =
            host.ports[2..].iter().flat_map(|port| port.kind.info().resources()).collect();
        assert!(resources.len() == 2 && resources[0] != resources[1], "{word}: {resources:?}");
        // What is written is read again.
        let again = netvm_config::parse("again", &netvm_config::to_toml(&host)).unwrap().host;
        assert_eq!(again, host);
    }
}

#[test]
fn a_program_has_one_place_in_each_direction() {
    let wrong = text("attach = \"veth\"", "");
    let found = findings(&wrong);
    let [finding] = &found[..] else { panic!("{found:#?}") };
    assert!(is(finding, "duplicate", "`reverse = "), "{}", finding.render(false));
    assert_eq!(finding.position().0, line_of(&wrong, "name = \"in\"\nhops") + 1);
}

#[test]
fn what_cannot_work_is_refused_with_a_remedy() {
    for (program, reverse, code, remedy) in [
        ("attach = \"veth\"", "reverse = \"in\"", "bad_value", "only one of the two"),
        ("attach = \"veth\"\nmtu = 9000", "reverse = \"out\"", "buffer_size", "lower `mtu`"),
        ("attach = \"vet\"", "", "bad_value", "did you mean `veth`?"),
        ("attach = \"veth\"\nthreads = 2", "reverse = \"out\"", "conflict", "remove it"),
        ("attach = \"veth\"\nsockets = \"/tmp\"", "reverse = \"out\"", "conflict", "remove it"),
        ("attach = \"af_xdp\"\noffloads = true", "reverse = \"out\"", "conflict", "remove it"),
        ("attach = \"tap\"\ncommand = []", "reverse = \"out\"", "bad_value", "write the program"),
        ("attach = \"veth\"\nports = 3", "reverse = \"out\"", "bad_value", "1 to 2"),
        ("attach = \"veth\"\nrewrite_macs = true", "reverse = \"out\"", "conflict", "`probe = false`"),
        ("ports = 1", "", "conflict", "remove it"),
        ("command = [\"x\"]", "reverse = \"out\"", "bad_value", "with `attach`"),
    ] {
        let found = findings(&text(program, reverse));
        assert!(found.iter().any(|finding| is(finding, code, remedy)), "{program} {reverse}: {found:#?}");
    }
}

#[test]
fn the_end_of_a_chain_with_a_program_does_not_depend_on_several_ports() {
    let both = text("attach = \"veth\"", "reverse = \"out\"")
        .replace("output = \"b\"", "output = \"ingress\"")
        .replace("forward = { chain = \"in\" }", "forward = { chain = \"out\" }");
    assert!(findings(&both).iter().any(|finding| is(finding, "conflict", "a chain for each port")));
    let one =
        text("attach = \"veth\"", "reverse = \"out\"").replace("output = \"b\"", "output = \"ingress\"");
    assert_eq!(found(&one), []);
}

#[test]
fn a_plan_restarts_a_program_only_for_its_own_keys() {
    let with =
        |keys: &str| text(&format!("attach = \"veth\"\ncommand = [\"x\"]\n{keys}"), "reverse = \"out\"");
    let plan = planned(&with(""), &with("while_starting = \"drop\"\nprobe = false"));
    assert!(plan.contains("while_starting unset → drop") && !plan.contains("restart"), "{plan}");
    let plan = planned(&with(""), &with("memory = 64"));
    assert!(plan.contains("restart"), "{plan}");
    let plan = planned(&with(""), &with("replicas = 2"));
    assert!(plan.contains("start") && !plan.contains("restart"), "{plan}");
}

#[test]
fn few_buffers_for_hops_of_af_xdp_are_a_warning_with_a_number_that_is_enough() {
    let warned = |buffers: u32| {
        let keys = "attach = \"af_xdp\"\ngroup = \"edge\"\nreplicas = 2";
        let group = format!("[[group]]\nname = \"edge\"\nbuffers = {buffers}\n");
        let text = format!("{group}{}", text(keys, "reverse = \"out\""));
        let warnings = netvm_config::parse("host.toml", &text).unwrap().warnings;
        let few = warnings.into_iter().filter(|finding| finding.kind() == Kind::FewBuffers);
        few.map(|finding| (finding.position(), finding.render(false))).collect::<Vec<_>>()
    };
    let found = warned(1024);
    let [(place, shown)] = &found[..] else { panic!("{found:#?}") };
    assert_eq!(*place, (3, 11));
    assert!(shown.contains("ids.1.right") && shown.contains("buffers = 2048"), "{shown}");
    assert!(warned(2048).is_empty());
}
