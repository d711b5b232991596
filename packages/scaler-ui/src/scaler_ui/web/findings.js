// What was found, as sentences; the name of what one is about is a link.
export default {
  template: `<div class="panel findings" data-testid="findings" role="status">
    <div v-for="{ severity, before, subject, address, behind } in findings" :class="'is-' + severity"
      >{{ before }}<a v-if="subject" class="nicegui-link" :href="address">{{ subject }}</a>{{ behind }}</div>
  </div>`,
  props: { findings: Array },
};
