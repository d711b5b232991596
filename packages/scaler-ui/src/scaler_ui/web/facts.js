// Values with names; the server replaces the values, and what has the focus keeps it.
export default {
  template: `<dl class="facts">
    <div v-for="fact in facts" :key="fact.name">
      <dt>{{ fact.name }}</dt>
      <dd :class="fact.name === 'state' && 'is-' + fact.text" :data-testid="'fact-' + fact.name"
        ><template v-for="([name, address], at) in fact.links"
          >{{ at ? ", " : "" }}<a class="nicegui-link" :href="address">{{ name }}</a></template
        >{{ fact.links.length && fact.text ? ", " : "" }}{{ fact.at ? when(fact.at) : fact.text }}</dd>
    </div>
  </dl>`,
  props: { facts: Array },
  methods: { when: (at) => new Date(1000 * at).toLocaleString("sv-SE") },
};
