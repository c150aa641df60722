"""The HTTP door: REST, server-sent events and WebSockets. (docs/protocols/http.md)"""
