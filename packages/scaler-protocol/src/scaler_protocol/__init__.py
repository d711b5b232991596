"""The values and bytes of Scaler: messages, ids, addresses, serializers, errors. No input or output."""
