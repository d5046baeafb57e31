// IPRouter: the IP router of "The Click Modular Router" (SOSP 1999, figure 8), which NetVM runs as an NF (section 5.1), with
// two interfaces. Input and output 0 are the left one, 1 the right one. It answers ARP and pings, and sends ICMP errors,
// redirects and fragments.
elementclass IPRouter {
    $LEFT_IP, $LEFT_NET, $LEFT_MAC, $RIGHT_IP, $RIGHT_NET, $RIGHT_MAC, $MTU |

    // Requests for the router's addresses, answers, IP, the rest.
    left :: Classifier(12/0806 20/0001, 12/0806 20/0002, 12/0800, -);
    right :: Classifier(12/0806 20/0001, 12/0806 20/0002, 12/0800, -);
    input[0] -> left;
    input[1] -> right;
    left[0] -> ARPResponder($LEFT_IP $LEFT_MAC) -> [0]output;
    right[0] -> ARPResponder($RIGHT_IP $RIGHT_MAC) -> [1]output;
    left[3] -> Discard;
    right[3] -> Discard;

    arp_left :: ARPQuerier($LEFT_IP, $LEFT_MAC) -> [0]output;
    arp_right :: ARPQuerier($RIGHT_IP, $RIGHT_MAC) -> [1]output;
    left[1] -> [1]arp_left;
    right[1] -> [1]arp_right;

    // Output 0: for the router itself. What has no route, a warning says once, and it is dropped.
    route :: StaticIPLookup($LEFT_IP/32 0, $RIGHT_IP/32 0, $LEFT_NET 1, $RIGHT_NET 2);
    ip :: Strip(14) -> CheckIPHeader -> [0]route;
    left[2] -> Paint(1) -> ip;
    right[2] -> Paint(2) -> ip;

    route[0] -> own :: IPClassifier(icmp type echo, -);
    own[0] -> ICMPPingResponder -> [0]route;
    own[1] -> ICMPError($LEFT_IP, unreachable, protocol) -> [0]route;

    route[1] -> DropBroadcasts
        -> redirect_left :: PaintTee(1)
        -> options_left :: IPGWOptions($LEFT_IP)
        -> FixIPSrc($LEFT_IP)
        -> ttl_left :: DecIPTTL
        -> fragment_left :: IPFragmenter($MTU)
        -> [0]arp_left;
    redirect_left[1] -> ICMPError($LEFT_IP, redirect, host) -> [0]route;
    options_left[1] -> ICMPError($LEFT_IP, parameterproblem) -> [0]route;
    ttl_left[1] -> ICMPError($RIGHT_IP, timeexceeded) -> [0]route;
    fragment_left[1] -> ICMPError($RIGHT_IP, unreachable, needfrag) -> [0]route;

    route[2] -> DropBroadcasts
        -> redirect_right :: PaintTee(2)
        -> options_right :: IPGWOptions($RIGHT_IP)
        -> FixIPSrc($RIGHT_IP)
        -> ttl_right :: DecIPTTL
        -> fragment_right :: IPFragmenter($MTU)
        -> [0]arp_right;
    redirect_right[1] -> ICMPError($RIGHT_IP, redirect, host) -> [0]route;
    options_right[1] -> ICMPError($RIGHT_IP, parameterproblem) -> [0]route;
    ttl_right[1] -> ICMPError($LEFT_IP, timeexceeded) -> [0]route;
    fragment_right[1] -> ICMPError($LEFT_IP, unreachable, needfrag) -> [0]route;
}
