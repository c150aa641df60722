"""The client of the Flight door. (docs/flight-client.md)

with stafeta.connect("grpc://127.0.0.1:8815") as broker:
    broker.publish("sensors/kitchen", ["21.5", "21.6"], kind="float")
"""
