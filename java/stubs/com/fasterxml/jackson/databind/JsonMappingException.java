package com.fasterxml.jackson.databind;

import com.fasterxml.jackson.core.JsonProcessingException;

public class JsonMappingException extends JsonProcessingException {
}
