// The same router between two network interfaces, such as those of a hop with attach = "veth", for an unmodified Click.
//
//   click ip-router-devices.click LEFT=left LEFT_IP=10.0.1.254 LEFT_NET=10.0.1.0/24 RIGHT=right RIGHT_IP=10.0.2.254 RIGHT_NET=10.0.2.0/24
require(library ip-router-element.click);

define($LEFT left, $LEFT_IP 10.0.1.254, $LEFT_NET 10.0.1.0/24, $LEFT_MAC 02:00:00:00:01:fe);
define($RIGHT right, $RIGHT_IP 10.0.2.254, $RIGHT_NET 10.0.2.0/24, $RIGHT_MAC 02:00:00:00:02:fe);
define($MTU 1500);

router :: IPRouter($LEFT_IP, $LEFT_NET, $LEFT_MAC, $RIGHT_IP, $RIGHT_NET, $RIGHT_MAC, $MTU);
FromDevice($LEFT, PROMISC true, SNIFFER false, METHOD LINUX) -> [0]router[0] -> Queue -> ToDevice($LEFT);
FromDevice($RIGHT, PROMISC true, SNIFFER false, METHOD LINUX) -> [1]router[1] -> Queue -> ToDevice($RIGHT);
