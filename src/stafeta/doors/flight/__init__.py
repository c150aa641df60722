"""Arrow Flight: bulk, for services, notebooks and Spark. (docs/protocols/flight.md)"""
