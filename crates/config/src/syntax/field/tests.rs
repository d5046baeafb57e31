// SPDX-License-Identifier: Apache-2.0
use super::*;

/// A text read and written again, or what is wrong with it.
fn again<T>(text: &str, read: fn(&str) -> Result<T, FieldError>, write: fn(&T) -> String) -> String {
    read(text).map_or_else(|error| format!("? {error}"), |value| write(&value))
}

#[test]
fn values_are_written_as_they_are_read() {
    let same = |texts: &[&str], written: &dyn Fn(&str) -> String| {
        texts.iter().for_each(|text| assert_eq!(written(text), *text));
    };
    same(&["10", "20-30", "none", "1-4094"], &|text| again(text, vlan, vlan_text));
    let macs = ["02:00:00:00:00:01", "02:00:00:00:00:00/ff:00:00:00:00:00", "00:00:00:00:00:00"];
    same(&macs, &|text| again(text, mac, mac_text));
    same(&["syn,!ack", "!syn", "fin,syn,rst,psh,ack,urg,ece,cwr"], &|text| again(text, flags, flags_text));
    same(&["no", "first", "later"], &|text| again(text, fragment, fragment_text));
    same(&["new", "established", "related", "invalid", "untracked"], &|text| again(text, state, state_text));
    same(&["request", "reply", "3", "1-2", "4-65535"], &|text| again(text, arp, arp_text));
    same(&["0", "255", "8-11"], &|text| again(text, byte, span_text));
    same(&["none", "4094"], &|text| again(text, tag, tag_text));
}

#[test]
fn code_points_have_names() {
    let classes = [("cs0", "0"), ("cs6", "48"), ("CS7", "56"), ("af11", "10"), ("af43", "38")];
    let others = [("ef", "46"), ("va", "44"), ("le", "1"), ("8-15", "8-15"), ("63", "63")];
    for (text, number) in classes.into_iter().chain(others) {
        assert_eq!(again(text, dscp, span_text), number, "{text}");
    }
    for wrong in ["64", "cs8", "af51", "af14", "af1", "af", "ef1", "", "-", "1-2-3"] {
        assert!(again(wrong, dscp, span_text).starts_with('?'), "{wrong}");
    }
}

#[test]
fn names_of_icmp_types_depend_on_the_protocol() {
    let number = |text: &str, protocols: &[IpProto]| icmp_type(text, protocols).map(|span| span.first);
    assert_eq!(number("echo-request", &[IpProto::ICMP]), Ok(8));
    assert_eq!(number("echo-request", &[IpProto::ICMPV6]), Ok(128));
    for protocols in [&[][..], &[IpProto::ICMP, IpProto::ICMPV6]] {
        assert_eq!(number("echo-request", protocols), Err(FieldError::WhichIcmp));
    }
    assert_eq!(icmp_type("8-11", &[]), Ok(Span { first: 8, last: 11 }));
    assert!(number("packet-too-big", &[IpProto::ICMP]).is_err());
    assert!(number("echo", &[IpProto::ICMP]).is_err());
}

#[test]
fn pci_addresses_get_their_domain() {
    let right = [("0000:3b:00.0", "0000:3b:00.0"), ("3B:1f.7", "0000:3b:1f.7")];
    right.iter().for_each(|(text, full)| assert_eq!(pci_address(text).as_deref(), Ok(*full)));
    for wrong in ["3b:20.0", "3b:00.8", "3b:00", "1:0000:3b:00.0", "+b:00.0", ""] {
        assert!(pci_address(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn errors_say_what_to_write_instead() {
    for (error, expected) in [
        (again("30-20", vlan, vlan_text), "write 20-30"),
        (again("0", vlan, vlan_text), "from 1 to 4094"),
        (again("99999999999", vlan, vlan_text), "from 1 to 4094"),
        (again("+1", vlan, vlan_text), "a VLAN such as 10"),
        (again("untagged", vlan, vlan_text), "or \"none\""),
        (again("02:00:00:00:00:01/ff:00:00:00:00:00", mac, mac_text), "write 02:00:00:00:00:00"),
        (again("02:00", mac, mac_text), "six bytes"),
        (again("syn,sin", flags, flags_text), "fin, syn, rst"),
        (again("", flags, flags_text), "fin, syn, rst"),
        (again("syn,!syn", flags, flags_text), "keep one of them"),
        (again("256", byte, span_text), "from 0 to 255"),
        (again("yes", fragment, fragment_text), "\"no\", \"first\" or \"later\""),
        (again("NEW", state, state_text), "\"new\", \"established\""),
        (again("4095", tag, tag_text), "from 1 to 4094"),
        (again("x", tag, tag_text), "\"none\""),
    ] {
        assert!(error.starts_with("? ") && error.contains(expected), "{error}");
    }
}
