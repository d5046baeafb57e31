# SPDX-License-Identifier: Apache-2.0
"""The module in the simulator, and the client against a server of the test."""

import json
import os
import pickle
import socket
import tempfile
import threading
import unittest

import netvm


class SimulatorTest(unittest.TestCase):
    def setUp(self):
        self.simulator = netvm.Simulator(ports=["lan", "wan"], roles=["audit"], chains=["plain", "scrub"])

    def test_packets_are_changed_in_place(self):
        def swap(packet):
            packet.data[0:12] = bytes(packet.data[6:12]) + bytes(packet.data[0:6])
            return netvm.to_port(packet.ingress)

        frame = bytes(range(60))
        outcome = self.simulator.inject(swap, 1, frame)
        self.assertEqual(outcome.verdict, netvm.to_port(1))
        self.assertEqual(outcome.data, frame[6:12] + frame[0:6] + frame[12:])

    def test_packets_grow_and_shrink(self):
        def push(packet):
            packet.prepend(4)
            packet.data[0:4] = b"head"
            packet.append(4)
            packet.data[-4:] = b"tail"
            return netvm.NEXT

        def pop(packet):
            packet.trim_front(2)
            packet.truncate(10)
            with self.assertRaises(netvm.NetlibError):
                packet.prepend(60_000)
            return netvm.drop_flow(7)

        frame = bytes(60)
        self.assertEqual(self.simulator.inject(push, 0, frame).data, b"head" + frame + b"tail")
        self.assertEqual(self.simulator.inject(pop, 0, b"abcd" * 15), (netvm.drop_flow(7), b"cdabcdabcd"))

    def test_every_packet_gets_its_own_verdict(self):
        def odd(packet):
            self.simulator.burst.count(0)
            return netvm.DROP if packet.data[0] % 2 else netvm.NEXT

        frames = [(0, bytes([n]) * 60) for n in range(100)]
        outcomes = self.simulator.inject_all(odd, frames)
        self.assertEqual([outcome.verdict for outcome in outcomes], [netvm.NEXT, netvm.DROP] * 50)
        self.assertEqual([outcome.data for outcome in outcomes], [frame for _, frame in frames])
        self.assertEqual(self.simulator.counter(0), 100)

    def test_packets_that_it_makes(self):
        def answer(packet):
            made = packet.alloc(60)
            self.assertEqual((bytes(made.data), made.ingress), (bytes(60), 1))
            made.data[:2] = b"hi"
            made.append(2)
            made.send(netvm.to_port(packet.ingress))
            with self.assertRaises(ValueError):
                made.send(netvm.NEXT)
            copy = packet.copy()
            self.assertEqual(bytes(copy.data), bytes(packet.data))
            return netvm.DROP

        for _ in range(500):
            dropped, made = self.simulator.exchange(answer, 1, b"x" * 60)
            self.assertEqual(dropped, (netvm.DROP, b"x" * 60))
            self.assertEqual((made.verdict, made.data[:60]), (netvm.to_port(1), b"hi" + bytes(58)))
        made = self.simulator.burst.alloc(100)
        made.set_ingress(1)
        self.assertEqual((len(made), made.ingress), (100, 1))
        self.assertIsNone(self.simulator.burst.alloc(60_000))

    def test_packets_that_it_holds(self):
        queue = []

        def delay(packet):
            queue.append(packet.hold())
            if len(queue) > 2:
                queue.pop(0).send(netvm.NEXT)
            return netvm.DROP

        frames = [bytes([n]) * 60 for n in range(200)]
        sent = [outcome.data for frame in frames for outcome in self.simulator.exchange(delay, 0, frame)]
        self.assertEqual(sent, frames[:-2])
        self.assertEqual(self.simulator.burst.may_hold(), 510)
        self.simulator.set_time(7.5)
        self.assertEqual(self.simulator.burst.now(), 7.5)

    def test_names(self):
        burst = self.simulator.burst
        self.simulator.inject(lambda packet: netvm.NEXT, 0, bytes(60))
        self.assertEqual((burst.port("wan"), burst.role("audit"), burst.chain("scrub")), (1, 0, 1))
        with self.assertRaises(KeyError):
            burst.port("nowhere")

    def test_the_rest_of_a_flow_is_steered(self):
        def steer(packet):
            return [
                netvm.steer_to_chain(1),
                netvm.steer_to_role(0),
                netvm.steer_to_port(1),
                netvm.STEER_BACK,
            ][packet.data[0]]

        outcomes = self.simulator.inject_all(steer, [(0, bytes([n]) * 60) for n in range(4)])
        expected = [netvm.steer_to_chain(1), netvm.steer_to_role(0), netvm.steer_to_port(1), netvm.STEER_BACK]
        self.assertEqual([outcome.verdict for outcome in outcomes], expected)

    def test_messages(self):
        burst = self.simulator.burst
        self.assertIsNone(burst.next_message())
        hello = netvm.Message("from_nf", "log", instance=3, version=2, payload=b"hello")
        for message in (hello, netvm.Message("load", percent=40), netvm.Message("drain")):
            self.simulator.tell(message)
        self.assertEqual(burst.next_message(), hello)
        self.assertEqual(burst.next_message().percent, 40)
        self.assertEqual(burst.next_message().kind, "drain")
        burst.send_message("log", 9, b"me too")
        self.assertEqual(self.simulator.told(), [netvm.Message("from_nf", "log", version=9, payload=b"me too")])
        with self.assertRaises(ValueError):
            burst.send_message("log", 9, bytes(1025))

    def test_memory_ends_with_the_burst(self):
        kept = []
        self.simulator.inject(lambda packet: kept.append(packet.data) or netvm.NEXT, 0, bytes(60))
        with self.assertRaises(ValueError):
            kept[0][0]

        # Something that still holds the memory.
        def hold(packet):
            kept.append(pickle.PickleBuffer(packet.data))
            return netvm.NEXT

        with self.assertRaises(BufferError):
            self.simulator.inject(hold, 0, bytes(60))

    def test_a_function_that_raises_loses_its_packet(self):
        def fail(packet):
            raise RuntimeError("on purpose")

        with self.assertRaises(RuntimeError):
            self.simulator.inject(fail, 0, bytes(60))
        self.assertEqual(self.simulator.inject(lambda packet: netvm.NEXT, 0, bytes(60)).verdict, netvm.NEXT)

    def test_wrong_verdicts_discard(self):
        with self.assertRaises(netvm.NetlibError):
            self.simulator.inject(lambda packet: 0x990000, 0, bytes(60))


class ClientTest(unittest.TestCase):
    def serve(self, answer):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "api.sock")
        server = socket.socket(socket.AF_UNIX)
        self.addCleanup(server.close)
        server.bind(path)
        server.listen()

        def reply():
            connection, _ = server.accept()
            with connection:
                self.asked = connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        self.addCleanup(thread.join)
        return netvm.Client(path)

    def test_answers_are_objects(self):
        body = json.dumps({"version": "1"}).encode()
        client = self.serve(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        self.assertEqual(client.status(), {"version": "1"})
        self.assertTrue(self.asked.startswith(b"GET /v1/status HTTP/1.1\r\n"))

    def test_refusals_are_errors(self):
        body = b'{"message": "host.toml has an error", "diagnostics": [{"severity": "error", "file": "host.toml",' \
            b'"line": 3, "column": 5, "message": "there is no key `prot`", "help": "did you mean `port`?"}]}'
        client = self.serve(b"HTTP/1.1 422 Wrong\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        with self.assertRaises(netvm.ApiError) as caught:
            client.apply("x = 1", confirm=60)
        self.assertEqual((caught.exception.message, caught.exception.status), ("host.toml has an error", 422))
        self.assertEqual(caught.exception.diagnostics[0]["line"], 3)
        self.assertEqual(
            str(caught.exception),
            "host.toml has an error\nhost.toml:3:5: error: there is no key `prot` (did you mean `port`?)",
        )
        self.assertTrue(self.asked.startswith(b"POST /v1/apply?confirm=60 HTTP/1.1\r\n"))

    def test_a_refusal_before_the_whole_request(self):
        client = self.serve(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        with self.assertRaises(netvm.ApiError) as caught:
            client.apply("x = 1\n" * 1_000_000)
        self.assertEqual(caught.exception.status, 413)

    def test_nobody_answers(self):
        with self.assertRaisesRegex(ConnectionError, "netvmd does not answer on /nonexistent/api.sock"):
            netvm.Client("/nonexistent/api.sock").status()


if __name__ == "__main__":
    unittest.main()
